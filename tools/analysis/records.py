"""Evaluation records as runs write them: read from metrics.jsonl, evaluations.jsonl or results.json, and checked."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from megatron.errors import UserError
from megatron.monitor.json_lines import as_float, read_json_lines

Record = dict[str, Any]
Placed = list[tuple[str, Record]]  # each record with its "file:line", or its place in the file


def read_lines(path: Path) -> Placed:
    """The records of a file of JSON lines. Lines that are no record are named on stderr; UserError where nothing can be read."""
    records, broken = read_json_lines(path)
    if broken and not records:
        raise UserError(f"{path}: is no {path.name}: not one line is a JSON object.")
    if broken:
        print(f"note: {path}: not a JSON object and left out: line {', '.join(map(str, broken))}", file=sys.stderr)
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    places = [f"{path}:{number}" for number, line in lines if line.strip() and number not in broken]
    return list(zip(places, records, strict=False))


def read_results(path: Path) -> tuple[Placed, Record]:
    """The records of a results.json, and the whole file. Raises UserError where it cannot be read, or is no results file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSON: {error}.") from error
    records = content.get("results") if isinstance(content, dict) else None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: is no results file: it has no list of objects called `results`.")
    placed = [(f"{path}: results[{index}]", record) for index, record in enumerate(records)]
    return [(where, {name: as_float(value) for name, value in record.items()}) for where, record in placed], content


def is_evaluation(record: Record, where: str) -> bool:
    """Whether a record is an evaluation; UserError where it is one whose fields cannot be right."""
    if "eval_length" not in record or "perplexity" not in record:
        return False
    optional = ("loss", "stderr", "step", "split", "protocol")
    faults = {
        "eval_length": "a number of tokens (at least 1)" if not (is_whole(record["eval_length"]) and record["eval_length"] > 0) else "",
        "step": "a whole number" if not is_whole(record.get("step")) else "",
        "split": "a text" if not isinstance(record.get("split"), str) else "",
        "protocol": "a text" if not isinstance(record.get("protocol"), str) else "",
        "loss": number_fault(record.get("loss")),
        "perplexity": number_fault(record["perplexity"]) or ("more than 0" if record["perplexity"] <= 0 else ""),
        "stderr": number_fault(record.get("stderr")) or ("at least 0" if record["stderr"] < 0 else ""),
    }
    for name, wanted in faults.items():
        if wanted and not (name in optional and record.get(name) is None):
            raise UserError(f"{where}: {name} of an evaluation is {record.get(name)!r}, not {wanted}.")
    return True


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number that a float can hold; true and false are none."""
    return isinstance(value, int) and not number_fault(value)


def number_fault(value: Any) -> str:
    """What a value is not, or "" for a number (NaN and infinity are; true, false and whole numbers beyond a float are not)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if number and not (isinstance(value, int) and abs(value) > sys.float_info.max) else "a number"


def choose(records: list[Record], name: str, wanted: Any, path: Path) -> list[Record]:
    """The records whose `name` is `wanted`; UserError with the values there are, where there is none."""
    chosen = [record for record in records if record.get(name) == wanted]
    if not chosen:
        there = ", ".join(map(str, dict.fromkeys(record.get(name) for record in records)))
        raise UserError(f"{path}: holds no evaluation of {name} {wanted}, only of {there}. Choose one with --{name}.")
    return chosen


def perplexity_error(perplexity: float, stderr: float | None) -> float:
    """The standard error of a perplexity from that of its loss, to first order: d exp(loss) = exp(loss) d loss. 0 where it is not known."""
    return perplexity * stderr if stderr is not None and math.isfinite(stderr) else 0.0
