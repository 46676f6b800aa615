"""Perplexity by evaluation length, of one or more runs: a plot (PNG) and a table.

    python tools/analysis/plot_perplexity.py logs/kerple/metrics.jsonl logs/dape/results.json --output perplexity.png

Reads the evaluation lines of a metrics.jsonl or evaluations.jsonl (the last evaluation, or that of --step) or a results.json. The training
length and the run's name come from results.json itself, from the config.yml beside the lines, or from --train-length and --labels.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import UserError  # noqa: E402
from tools.analysis.images import save  # noqa: E402
from tools.analysis.records import (  # noqa: E402
    Placed,
    Record,
    choose,
    is_evaluation,
    is_whole,
    perplexity_error,
    read_lines,
    read_results,
)


@dataclass(frozen=True)
class Point:
    """One length: `stderr` is the standard error of the loss over sequences, None where it is not known."""

    length: int
    loss: float
    perplexity: float
    stderr: float | None

    @property
    def error(self) -> float:
        """The standard error of the perplexity; 0 where it is not known."""
        return perplexity_error(self.perplexity, self.stderr)


@dataclass(frozen=True)
class Curve:
    """One run at one step: perplexity by length, shortest first."""

    label: str
    step: int | None
    train_length: int | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Facts:
    """What is known about a run beside its evaluations."""

    pos_emb: str | None
    train_length: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a user's mistake."""
    options = parser().parse_args(arguments)
    try:
        choice = (options.split, options.step, options.protocol, options.train_length)
        curves = label([read_curve(path, *choice) for path in options.files], options.labels)
        save(draw(curves, options.title or f"perplexity on the {options.split} split"), options.output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_table(curves)
    print(f"wrote {options.output}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="metrics.jsonl or results.json; one curve each")
    parser.add_argument("-o", "--output", type=Path, default=Path("perplexity.png"), help="PNG to write (default: %(default)s)")
    parser.add_argument("--split", default="valid", help="split to show (default: %(default)s)")
    parser.add_argument("--step", type=int, help="evaluation of this training step (default: the last one)")
    parser.add_argument("--protocol", help="evaluation protocol to show, where a file holds several")
    parser.add_argument("--train-length", type=int, help="training length in tokens, to be marked")
    parser.add_argument("--labels", nargs="+", help="names of the curves, one a file")
    parser.add_argument("--title", help="title of the plot")
    return parser


def read_curve(
    path: Path, split: str = "valid", step: int | None = None, protocol: str | None = None, train_length: int | None = None
) -> Curve:
    """One file's curve. Raises UserError where the file cannot be read, or holds no such evaluation (and says what it does hold)."""
    records, facts = read_run(path)
    evaluations = [record for where, record in records if is_evaluation(record, where)]
    if not evaluations:
        raise UserError(f"{path}: holds no evaluation. Lines with eval_length and perplexity come at each eval_interval and at the end.")
    chosen = choose(evaluations, "split", split, path)
    if protocol is not None:
        chosen = choose(chosen, "protocol", protocol, path)
    elif len(protocols := sorted({str(record.get("protocol")) for record in chosen})) > 1:
        raise UserError(f"{path}: holds evaluations by several protocols; choose one with --protocol: {', '.join(protocols)}.")
    step = step if step is not None else chosen[-1].get("step")
    chosen = choose(chosen, "step", step, path)
    points = {record["eval_length"]: point(record) for record in chosen}  # of a step that ran twice, the later line counts
    if train_length is not None and train_length < 1:
        raise UserError(f"--train-length: must be at least 1 token, not {train_length}.")
    return Curve(
        facts.pos_emb or path.resolve().parent.name,
        step,
        train_length or facts.train_length,
        tuple(points[length] for length in sorted(points)),
    )


def read_run(path: Path) -> tuple[Placed, Facts]:
    """The records of a file, and what it, or the config.yml beside it (nothing where there is none), says about the run."""
    if path.suffix == ".json":
        records, content = read_results(path)
        return records, read_facts(content, "training_length", path)
    beside = path.parent / "config.yml"
    records = read_lines(path)
    try:
        keys = yaml.safe_load(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        keys = None
    return records, read_facts(keys if isinstance(keys, dict) else {}, "seq_length", beside)


def read_facts(keys: dict[str, Any], length_key: str, path: Path) -> Facts:
    """The run's name and training length; UserError where they are there and cannot be that."""
    name, length = keys.get("pos_emb"), keys.get(length_key)
    if not isinstance(name, str | None):
        raise UserError(f"{path}: pos_emb is {name!r}, not a text.")
    if length is not None and not (is_whole(length) and length > 0):
        raise UserError(f"{path}: {length_key} is {length!r}, not a number of tokens (at least 1).")
    return Facts(name, length)


def point(record: Record) -> Point:
    """An evaluation as a point; a loss that is missing follows from the perplexity."""
    loss, perplexity = record.get("loss"), record["perplexity"]
    return Point(record["eval_length"], math.log(perplexity) if loss is None else loss, perplexity, record.get("stderr"))


def label(curves: Sequence[Curve], labels: Sequence[str] | None) -> list[Curve]:
    """Curves with names that tell them apart: those given, or the runs' own, numbered where two are the same."""
    if labels is not None and len(labels) != len(curves):
        raise UserError(f"--labels: {len(labels)} names for {len(curves)} files. Give one for each.")
    if labels is not None:
        return [replace(curve, label=name) for curve, name in zip(curves, labels, strict=True)]
    count, seen, named = Counter(curve.label for curve in curves), Counter(), []
    for curve in curves:
        seen[curve.label] += 1
        named.append(replace(curve, label=f"{curve.label} ({seen[curve.label]})") if count[curve.label] > 1 else curve)
    return named


def draw(curves: Sequence[Curve], title: str) -> Figure:
    """The plot: lengths on a log2 axis, a line with standard errors for each curve, the training lengths marked.

    Perplexities that are not finite are left out; the axis is logarithmic where they span more than a factor of ten.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve in curves:
        shown = [each for each in curve.points if math.isfinite(each.perplexity)]
        name = curve.label if curve.step is None else f"{curve.label}, step {curve.step:,}"
        axes.errorbar(
            [each.length for each in shown],
            [each.perplexity for each in shown],
            yerr=[each.error for each in shown],
            marker="o",
            markersize=4,
            capsize=3,
            label=name,
        )
    values = [each.perplexity for curve in curves for each in curve.points if math.isfinite(each.perplexity)]
    if not values:
        raise UserError("no perplexity is a finite number: there is nothing to draw.")
    lengths = sorted({each.length for curve in curves for each in curve.points})
    trained = sorted({curve.train_length for curve in curves if curve.train_length is not None})
    for index, length in enumerate(trained):
        axes.axvline(length, color="grey", linestyle="--", linewidth=1, label="training length" if index == 0 else None)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45 if len(lengths) > 8 else 0)
    axes.set_xticks([], minor=True)
    if max(values) > 10 * min(values):
        axes.set_yscale("log")
    axes.set(xlabel="evaluation length (tokens)", ylabel="perplexity", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def print_table(curves: Sequence[Curve]) -> None:
    """Perplexities with their standard errors: a row for each length, a column for each curve; `*` marks the training length."""
    table = Table("length", *(curve.label for curve in curves))
    for column in table.columns:
        column.justify = "right"
    for length in sorted({each.length for curve in curves for each in curve.points}):
        cells = []
        for curve in curves:
            found = [each for each in curve.points if each.length == length]
            mark = " *" if length == curve.train_length else ""
            cells.append(f"{found[0].perplexity:.4f} ± {found[0].error:.4f}{mark}" if found else "")
        table.add_row(f"{length:,}", *cells)
    Console().print(table)
    if any(curve.train_length is not None for curve in curves):
        print("* training length")


if __name__ == "__main__":
    sys.exit(main())
