"""Methods against each other: tables over the evaluation lengths, losses by position, and what a reader must know before believing them."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from megatron.errors import UserError
from tools.analysis.records import Record, perplexity_error
from tools.analysis.runs import Method, Run
from tools.analysis.settings import differing, identity, text

PERPLEXITY = ("last", "non_overlapping", "sliding")  # protocols whose perplexities make a table
GAIN, POSITION_WISE = "information_gain", "position_wise"
COMPARED = (*PERPLEXITY, GAIN, POSITION_WISE)


@dataclass(frozen=True)
class Cell:
    """One method at one length."""

    values: tuple[float, ...]  # one a seed
    stderr: float | None  # of a single seed: over sequences

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for a single one, or where a value is not finite."""
        return statistics.stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else None

    @property
    def spread(self) -> float | None:
        """What stands behind ±: the standard deviation over seeds, or of a single seed the standard error over sequences."""
        return self.std if len(self.values) > 1 else self.stderr


@dataclass(frozen=True)
class Table:
    """Methods x lengths, of one training length and one protocol."""

    training_length: int
    protocol: str
    stride: int | None
    rows: tuple[tuple[Method, dict[int, Cell]], ...]

    @property
    def quantity(self) -> str:
        """What the cells hold."""
        return "gain" if self.protocol == GAIN else "perplexity"

    @property
    def name(self) -> str:
        """The protocol, and the stride where there is one."""
        return self.protocol if self.stride is None else f"{self.protocol}, stride {self.stride:,}"

    @cached_property
    def lengths(self) -> list[int]:
        """Evaluation lengths, the shortest first."""
        return sorted({length for _, cells in self.rows for length in cells})

    def best(self, length: int) -> set[str]:
        """Labels of the methods with the lowest perplexity as it is written: nobody where fewer than two compete. A model that sees what it
        predicts does not compete, and gains are not ranked: a large one may come from a bad model."""
        if self.quantity == "gain":
            return set()
        found = {method.label: cells[length].mean for method, cells in self.rows if length in cells and not method.leaks}
        finite = [mean for mean in found.values() if math.isfinite(mean)]
        return {label for label, mean in found.items() if len(found) > 1 and finite and show(mean) == show(min(finite))}


@dataclass(frozen=True)
class PositionCurve:
    """Loss by position of one method, at its training length's longest evaluation."""

    method: Method
    eval_length: int
    ends: tuple[int, ...]  # of the buckets of positions, from 1
    losses: tuple[float, ...]  # means over the seeds
    spreads: tuple[float | None, ...]  # as of a Cell

    @property
    def training_length(self) -> int:
        """Tokens of a training sequence."""
        return self.method.training_length

    @property
    def name(self) -> str:
        """The protocol."""
        return POSITION_WISE

    @property
    def middles(self) -> list[float]:
        """The middle of each bucket."""
        return [(before + 1 + end) / 2 for before, end in zip((0, *self.ends), self.ends, strict=False)]


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown."""

    split: str
    methods: tuple[Method, ...]
    tables: tuple[Table, ...]
    curves: tuple[PositionCurve, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, method by method."""
        return [run for method in self.methods for run in method.runs]

    @property
    def training_lengths(self) -> list[int]:
        """The shortest first."""
        return sorted({method.training_length for method in self.methods})


def show(value: float) -> str:
    """A perplexity as it is written."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "NaN"
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}" if value < 10**6 else f"{value:.2e}"


def compare(methods: Sequence[Method], split: str, protocols: Sequence[str], anyway: bool) -> Comparison:
    """Put the methods side by side. Raises UserError where their perplexities are on different tokens (unless `anyway`: then a note says
    so), or where no run has results of `protocols`."""
    runs = [run for method in methods for run in method.runs]
    notes = [different_tokens(runs, split, anyway), *differences(methods)]
    tables, curves = [], []
    for training_length in sorted({method.training_length for method in methods}):
        alike = [method for method in methods if method.training_length == training_length]
        for protocol in protocols:
            if protocol == POSITION_WISE:
                curves += position_curves(alike)
            else:
                tables += tables_of(alike, protocol)
    if not tables and not curves:
        there = ", ".join(sorted({record["protocol"] for run in runs for record in run.records}))
        raise UserError(f"--protocol: no run has results of {', '.join(protocols)} on the {split} split, only of {there}.")
    notes += [note for table in tables for note in incomplete(table, methods)]
    return Comparison(split, tuple(methods), tuple(tables), tuple(curves), tuple(note for note in notes if note))


def tables_of(methods: Sequence[Method], protocol: str) -> Iterator[Table]:
    """A protocol's tables of methods with one training length: one for each stride."""
    found = [record for method in methods for run in method.runs for record in run.records if record["protocol"] == protocol]
    for stride in sorted({record.get("stride") for record in found}, key=lambda each: each or 0):
        rows = []
        for method in methods:
            cells = {length: cell(records) for length, records in by_length(method, protocol, stride).items()}
            rows += [(method, cells)] if cells else []
        yield Table(methods[0].training_length, protocol, stride, tuple(rows))


def by_length(method: Method, protocol: str, stride: int | None = None) -> dict[int, list[Record]]:
    """{length: [one record a seed]}, the shortest first."""
    found: dict[int, list[Record]] = {}
    for run in method.runs:
        for record in run.records:
            if record["protocol"] == protocol and record.get("stride") == stride:
                found.setdefault(record["eval_length"], []).append(record)
    return dict(sorted(found.items()))


def cell(records: Sequence[Record]) -> Cell:
    """One method's records at one length, one a seed."""
    first, stderr = records[0], records[0].get("stderr") if len(records) == 1 else None
    if first["protocol"] == GAIN:
        return Cell(tuple(record["gain"] for record in records), stderr)
    return Cell(
        tuple(record["perplexity"] for record in records), None if stderr is None else perplexity_error(first["perplexity"], stderr)
    )


def position_curves(methods: Sequence[Method]) -> list[PositionCurve]:
    """The curves of methods with one training length, at the longest length that one of them was evaluated at."""
    found = {method.label: by_length(method, POSITION_WISE) for method in methods}
    longest = max((length for records in found.values() for length in records), default=0)
    curves = []
    for method in methods:
        records = found[method.label].get(longest)
        if not records:
            continue
        if any(record["positions"] != records[0]["positions"] for record in records):
            raise UserError(
                f"{method.label}: its seeds have position_wise losses of different buckets at {longest:,}. Evaluate them again, alike."
            )
        stderrs = records[0]["stderrs"] if len(records) == 1 else [None] * len(records[0]["positions"])
        cells = [Cell(values, stderr) for *values, stderr in zip(*(record["losses"] for record in records), stderrs, strict=True)]
        ends = tuple(records[0]["positions"])
        curves.append(PositionCurve(method, longest, ends, tuple(each.mean for each in cells), tuple(each.spread for each in cells)))
    return curves


def different_tokens(runs: Sequence[Run], split: str, anyway: bool) -> str:
    """A note where the evaluations are not on the same tokens; UserError instead unless `anyway`."""
    texts = [text(run.settings, split) for run in runs]
    keys = differing(texts)
    if not keys:
        return ""
    other = next(index for index, each in enumerate(texts) if each != texts[0])
    example = "; ".join(f"{key}: {texts[0][key]} and {texts[other][key]}" for key in keys if texts[0][key] != texts[other][key])
    problem = f"{runs[0].folder} and {runs[other].folder} have different tokenizers or texts ({example})"
    if not anyway:
        raise UserError(
            f"{problem}: perplexities a token on different tokens cannot be compared. "
            "Compare runs of one tokenizer and text, or, where only the names differ, add --anyway."
        )
    return f"NOT COMPARABLE, unless only the names differ (--anyway was given): {problem}."


def differences(methods: Sequence[Method]) -> Iterator[str]:
    """Notes on what beside the positional encoding is not the same in all runs."""
    runs = [run for method in methods for run in method.runs]
    lengths = sorted({run.training_length for run in runs})
    if len(lengths) > 1:
        names = " and ".join(f"{length:,}" for length in lengths)
        yield f"Training lengths {names}: each has tables of its own. Do not compare perplexities across training lengths."
    if len(steps := sorted({run.step for run in runs})) > 1:
        where = "; ".join(f"step {step:,}: {', '.join(str(run.folder) for run in runs if run.step == step)}" for step in steps)
        yield f"Not all runs were evaluated at the same step, so that some are trained for longer. {where}."
    for length in lengths:
        settings = [identity(run.settings, run.encoding) for run in runs if run.training_length == length]
        common = [{key: value for key, value in each.items() if all(key in other for other in settings)} for each in settings]
        if keys := [key for key in differing(common) if key != "pos_emb"]:
            yield f"Trained at {length:,}: the runs differ in more than positional encoding and seed: {', '.join(keys)} (see the settings)."
    for method in methods:
        if method.leaks:
            yield f"{method.label}: this ablation sees what it predicts; its perplexities are comparable with no other model's."


def incomplete(table: Table, methods: Sequence[Method]) -> Iterator[str]:
    """Notes on methods that a table lacks, and on cells that stand on fewer seeds or other amounts of text than others."""
    where = f"Trained at {table.training_length:,}, {table.name}"
    there = [method.label for method, _ in table.rows]
    if absent := [each.label for each in methods if each.training_length == table.training_length and each.label not in there]:
        yield f"{where}: no results of {', '.join(absent)}."
    for method, cells in table.rows:
        few = [f"{length:,} ({len(each.values)})" for length, each in cells.items() if len(each.values) < len(method.runs)]
        if few:
            yield f"{where}: not all {len(method.runs)} seeds of {method.label} have the lengths {', '.join(few)}."
    for length in table.lengths:
        records = [record for method, _ in table.rows for record in by_length(method, table.protocol, table.stride).get(length, [])]
        amounts = sorted({record["scored_tokens"] for record in records if "scored_tokens" in record})
        if len(amounts) > 1:
            yield f"{where}: at {length:,} the runs were evaluated on different amounts of text ({', '.join(map(str, amounts))} tokens)."
