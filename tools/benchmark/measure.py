"""Measuring: interleaved runs, medians, peak memory of a process, results as JSON and as a table."""

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from megatron.files import write_atomically


def interleaved(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turns so that whatever else the machine does meets all alike; one round before that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_mebibytes() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on, without naming the machine."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "python": platform.python_version(), "threads": threads, "cpu": capability}


def report(title: str, rows: Sequence[Mapping[str, Any]], output: str | None, about: Mapping[str, Any]) -> None:
    """Print the rows as a table; with `output` also write them as JSON, whole or not at all."""
    table = Table(title=title)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(_shown(row.get(name)) for name in columns))
    Console(width=None if Console().is_terminal else 160).print(table)
    if output is not None:
        write_atomically(Path(output), json.dumps({"title": title, **about, "rows": list(rows)}, indent=1) + "\n")


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else f"{value:,.0f}" if isinstance(value, float) else str(value)
