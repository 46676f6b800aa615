"""Perplexity by evaluation length, of one or more runs: a plot (PNG) and a table.

    python tools/analysis/plot_perplexity.py logs/kerple/metrics.jsonl logs/dape/results.json --output perplexity.png

Reads the evaluation lines of a metrics.jsonl (the last evaluation, or that of --step) or a results.json. The training length and the run's
name come from results.json itself, from the config.yml beside a metrics.jsonl, or from --train-length and --labels.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
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
from megatron.monitor.json_lines import as_float, read_json_lines  # noqa: E402


@dataclass(frozen=True)
class Point:
    """One length: `stderr` is the standard error of the loss over sequences, None where it is not known."""

    length: int
    loss: float
    perplexity: float
    stderr: float | None

    @property
    def error(self) -> float:
        """The standard error of the perplexity, to first order: d exp(loss) = exp(loss) d loss. 0 where it is not known."""
        return self.perplexity * self.stderr if self.stderr is not None and math.isfinite(self.stderr) else 0.0


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
    records, facts = read_results(path) if path.suffix == ".json" else read_metrics(path)
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


def read_metrics(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], Facts]:
    """The records of a metrics.jsonl, each with its "file:line", and what the config.yml beside it says (nothing where there is none)."""
    records, broken = read_json_lines(path)
    if broken and not records:
        raise UserError(f"{path}: is no metrics.jsonl: not one line is a JSON object.")
    if broken:
        print(f"note: {path}: not a JSON object and left out: line {', '.join(map(str, broken))}", file=sys.stderr)
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    places = [f"{path}:{number}" for number, line in lines if line.strip() and number not in broken]
    beside = path.parent / "config.yml"
    try:
        keys = yaml.safe_load(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        keys = None
    return list(zip(places, records, strict=False)), read_facts(keys if isinstance(keys, dict) else {}, "seq_length", beside)


def read_results(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], Facts]:
    """The records of a results.json, each with its place, and what it says about the run."""
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
    facts = read_facts(content, "training_length", path)
    return [(where, {name: as_float(value) for name, value in record.items()}) for where, record in placed], facts


def read_facts(keys: dict[str, Any], length_key: str, path: Path) -> Facts:
    """The run's name and training length; UserError where they are there and cannot be that."""
    name, length = keys.get("pos_emb"), keys.get(length_key)
    if not isinstance(name, str | None):
        raise UserError(f"{path}: pos_emb is {name!r}, not a text.")
    if length is not None and not (is_whole(length) and length > 0):
        raise UserError(f"{path}: {length_key} is {length!r}, not a number of tokens (at least 1).")
    return Facts(name, length)


def is_evaluation(record: dict[str, Any], where: str) -> bool:
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


def choose(records: list[dict[str, Any]], name: str, wanted: Any, path: Path) -> list[dict[str, Any]]:
    """The records whose `name` is `wanted`; UserError with the values there are, where there is none."""
    chosen = [record for record in records if record.get(name) == wanted]
    if not chosen:
        there = ", ".join(map(str, dict.fromkeys(record.get(name) for record in records)))
        raise UserError(f"{path}: holds no evaluation of {name} {wanted}, only of {there}. Choose one with --{name}.")
    return chosen


def point(record: dict[str, Any]) -> Point:
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


def save(figure: Figure, path: Path) -> None:
    """Write the PNG whole or not at all: under a temporary name in the same folder, then renamed. Raises UserError where it cannot."""
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, format="png", dpi=150)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"--output: cannot write {path}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
