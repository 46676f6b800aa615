"""The orders that the papers' comparison has and a small model must show too: computed from the runs' results, by stated thresholds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from megatron.config.methods import resolve
from megatron.files import write_atomically
from megatron.monitor.json_lines import to_json
from tools.analysis.comparison import by_length, cell
from tools.analysis.names import describe
from tools.analysis.runs import gather, read_run

FEW_PER_CENT = 0.05  # between the best and the worst method at the training length
MUCH_WORSE = 1.2  # times RoPE's own perplexity at the training length, on the same scored text
FLAT = 0.02  # between the lengths from twice the training length on
AT = 1.005  # times the other's perplexity is still "at"
FAR = 8  # times the training length is far beyond it
LEAKS = 1.5  # a perplexity below is that of a model that sees what it predicts

Perplexities = Mapping[tuple[str, int], Mapping[int, float]]  # (method without aliases, kernel) -> {evaluation length: perplexity}
HEADER = ("order", "threshold", "appears", "figures that decide")
PAIRS = (  # X, DAPE-X
    (("kerple_log", 1), ("dape_kerple_log", 1)),
    (("alibi", 1), ("dape_alibi", 1)),
    (("fire", 1), ("dape_fire", 1)),
    (("kerple_log", 1), ("dape_kerple_log", 3)),
)


@dataclass(frozen=True)
class Verdict:
    """One order. `holds` is None where the runs that it is about are missing."""

    order: str
    threshold: str
    holds: bool | None
    figures: dict[str, float]


def read_perplexities(folders: Sequence[Path]) -> dict[tuple[str, int], dict[int, float]]:
    """From log folders: the last protocol on the validation split, the mean over the seeds of a method."""
    methods = gather([read_run(folder, "valid") for folder in folders])
    return {
        (each.encoding.name, each.kernel): {length: cell(records).mean for length, records in by_length(each, "last").items()}
        for each in methods
    }


def judge(found: Perplexities, training_length: int) -> list[Verdict]:
    """Every order with its verdict."""
    return [
        _alike(found, training_length),
        _rotary(found, training_length),
        _alibi(found, training_length),
        _below(found, ("kerple_log", 1), ("alibi", 1), 2 * training_length),
        *(_below(found, mapped, base, FAR * training_length) for base, mapped in PAIRS),
        _no_leak(found),
    ]


def _alike(found: Perplexities, length: int) -> Verdict:
    at = {show(method): curve[length] for method, curve in found.items() if length in curve}
    spread = max(at.values()) / min(at.values()) - 1 if len(at) > 1 else None
    return Verdict(
        f"all methods within a few per cent at the training length ({length:,})",
        f"the worst at most {FEW_PER_CENT:.0%} above the best",
        None if spread is None else spread <= FEW_PER_CENT,
        at,
    )


def _rotary(found: Perplexities, length: int) -> Verdict:
    curve = found.get(("rotary", 1), {})
    ratios = {f"{at:,}": curve[at] / curve[length] for at in _beyond(curve, 2 * length)} if length in curve else {}
    return Verdict(
        f"RoPE much worse from {2 * length:,} tokens on",
        f"at least {MUCH_WORSE:g} times its perplexity at {length:,}",
        min(ratios.values()) >= MUCH_WORSE if ratios else None,
        ratios,
    )


def _alibi(found: Perplexities, length: int) -> Verdict:
    curve = found.get(("alibi", 1), {})
    beyond = {f"{at:,}": curve[at] for at in _beyond(curve, 2 * length)}
    return Verdict(
        f"ALiBi flat from {2 * length:,} tokens on",
        f"the highest at most {FLAT:.0%} above the lowest",
        max(beyond.values()) <= (1 + FLAT) * min(beyond.values()) if beyond else None,
        beyond,
    )


def _below(found: Perplexities, method: tuple[str, int], other: tuple[str, int], start: int) -> Verdict:
    mine, its = found.get(method, {}), found.get(other, {})
    ratios = {f"{at:,}": mine[at] / its[at] for at in _beyond(mine, start) if at in its}
    return Verdict(
        f"{show(method)} at or below {show(other)} from {start:,} tokens on",
        f"at most {AT:g} times its perplexity",
        max(ratios.values()) <= AT if ratios else None,
        ratios,
    )


def _no_leak(found: Perplexities) -> Verdict:
    lowest = {show(method): min(curve.values()) for method, curve in found.items() if curve}
    return Verdict("no future leaks", f"no perplexity below {LEAKS:g}", min(lowest.values()) >= LEAKS if lowest else None, lowest)


def _beyond(curve: Mapping[int, float], start: int) -> Iterator[int]:
    return (length for length in sorted(curve) if length >= start)


def show(method: tuple[str, int]) -> str:
    """("dape_kerple_log", 3) -> "DAPE V2-KERPLE-log, kernel 3", as in the other tables."""
    name, kernel = method
    return describe(resolve(name), {"dape_kernel_size": kernel})


def write_verdicts(verdicts: Sequence[Verdict], folder: Path) -> None:
    """orders.json, and orders.md for a page of documentation."""
    write_atomically(folder / "orders.json", to_json({"orders": [asdict(verdict) for verdict in verdicts]}) + "\n")
    lines = [HEADER, ("---",) * len(HEADER), *map(_cells, verdicts)]
    write_atomically(folder / "orders.md", "".join(f"| {' | '.join(line)} |\n" for line in lines))


def show_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    """As a table, with the figures that decide."""
    table = Table(*HEADER, title="The papers' orders at this scale", show_lines=True)
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    console.print(table)


def _cells(verdict: Verdict) -> tuple[str, ...]:
    """One for each of HEADER."""
    holds = {True: "yes", False: "no", None: "runs missing"}[verdict.holds]
    return verdict.order, verdict.threshold, holds, ", ".join(f"{name}: {value:.4g}" for name, value in verdict.figures.items())
