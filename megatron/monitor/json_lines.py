"""metrics.jsonl: one JSON object a line, the file that users' scripts rely on. Written and read here."""

import json
import math
import os
from pathlib import Path
from typing import Any

from megatron.errors import UserError
from megatron.monitor.curve import Curve
from megatron.monitor.sinks import Record, Scalars


class MetricsFileError(UserError):
    """A metrics file that cannot be opened, read or understood; the message names the file and, where there is one, the line."""


class JsonLines:
    """Appends to `<folder>/<name>`; each record reaches the operating system whole, in one write, before the call returns.

    A run that was killed in the middle of a write leaves half a line: it is ended, so that the next record starts on a line of its own.
    A record that cannot be written (a full disk) is kept in memory and written before the next one.
    """

    keeps_unwritten = True

    def __init__(self, folder: str | Path, name: str = "metrics.jsonl"):
        """Create the folder and the file. Raises MetricsFileError where that is impossible."""
        self.name = name
        path = Path(folder) / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab+", buffering=0)  # noqa: SIM115 (open as long as the run)
            self._unwritten = b"\n" if _ends_in_half_a_line(self._file) else b""
        except OSError as error:
            message = f"log_dir: cannot write {path}: {error.strerror}. Give another log_dir, or make that one writable."
            raise MetricsFileError(message) from error

    def write(self, record: Record, scalars: Scalars) -> None:
        self._unwritten += to_json(record).encode() + b"\n"
        self._drain()

    def curve(self, curve: Curve) -> None:
        """Nothing: the points are lines already."""

    def close(self) -> None:
        try:
            self._drain()
        finally:
            self._file.close()

    def _drain(self) -> None:
        while self._unwritten:
            written = self._file.write(self._unwritten) or 0
            self._unwritten = self._unwritten[written:]


def to_json(record: Record) -> str:
    """One line of valid JSON. Floats with all their digits; those that JSON lacks become "NaN", "Infinity" and "-Infinity" (strings)."""
    return json.dumps(finite(record), allow_nan=False, ensure_ascii=False)


def read_json_lines(path: str | Path) -> tuple[list[dict[str, Any]], list[int]]:
    """All records of a metrics file in order, and the numbers (from 1) of lines that are no record, as a killed run leaves them.

    The strings "NaN", "Infinity" and "-Infinity" become floats again. Raises MetricsFileError where the file cannot be read.
    """
    records, broken = [], []
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise MetricsFileError(f"{path}: cannot be read: {error.strerror}.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append({name: as_float(value) for name, value in record.items()})
        else:
            broken.append(number)
    return records, broken


def as_float(value: Any) -> Any:
    """The inverse of what `to_json` does to a float that JSON lacks."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def finite(value: Any) -> Any:
    """The same value, floats that JSON lacks as strings."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _ends_in_half_a_line(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
