"""A comparison as JSON with every number, and as one HTML file that needs no other."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from megatron.monitor.json_lines import finite
from tools.analysis.comparison import Comparison, PositionCurve, Table
from tools.analysis.papers import WARNING, paper_rows
from tools.analysis.runs import Method, Run
from tools.analysis.settings import Settings, differing, shown
from tools.analysis.tables import SPREAD, sheets

TEMPLATE = "report.html.j2"
FIGURES = {
    "perplexity.png": f"Perplexity by evaluation length. {SPREAD}",
    "position_wise.png": f"Loss by position in the longest sequences, each point the middle of a bucket of positions. {SPREAD}",
    "information_gain.png": f"Information gain: what context beyond the training length is worth. Above 0 it helps. {SPREAD}",
}


def to_json(comparison: Comparison) -> str:
    """Every number that is shown; those that JSON lacks as the strings "NaN", "Infinity" and "-Infinity"."""
    differ, shared = settings_of(comparison.runs)
    content = {
        "split": comparison.split,
        "notes": list(comparison.notes),
        "methods": [describe_method(method) for method in comparison.methods],
        "tables": [describe_table(table) for table in comparison.tables],
        "position_wise": [describe_curve(curve) for curve in comparison.curves],
        "papers": {"note": WARNING, "rows": describe_papers(comparison)},
        "settings": {"differ": differ, "shared": shared},
    }
    return json.dumps(finite(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def describe_method(method: Method) -> dict[str, Any]:
    """Who a label of the tables is."""
    runs = [{"folder": str(run.folder), "source": run.source, "seed": run.seed, "step": run.step} for run in method.runs]
    about = {"method": method.label, "pos_emb": method.encoding.name, "dape_kernel_size": method.kernel if method.encoding.mapped else None}
    return {**about, "training_length": method.training_length, "runs": runs}


def describe_table(table: Table) -> dict[str, Any]:
    """A table's cells: mean, standard deviation and value of each seed, and of a single seed the standard error over sequences."""
    rows = [
        {
            "method": method.label,
            "lengths": {
                length: {
                    "mean": cell.mean,
                    "std": cell.std,
                    "stderr": cell.stderr,
                    "values": list(cell.values),
                    "best": method.label in table.best(length),
                }
                for length, cell in cells.items()
            },
        }
        for method, cells in table.rows
    ]
    about = {"training_length": table.training_length, "protocol": table.protocol, "stride": table.stride, "quantity": table.quantity}
    return {**about, "rows": rows}


def describe_curve(curve: PositionCurve) -> dict[str, Any]:
    """A curve's points."""
    about = {"method": curve.method.label, "training_length": curve.method.training_length, "eval_length": curve.eval_length}
    return {**about, "positions": list(curve.ends), "losses": list(curve.losses), "spreads": list(curve.spreads)}


def describe_papers(comparison: Comparison) -> list[dict[str, Any]]:
    """The papers' figures that stand beside the measured ones."""
    return [
        {
            "method": row.method.label,
            "training_length": length,
            "source": row.source,
            "perplexities": {length: float(digits) for length, digits in row.perplexities.items()},
        }
        for length in comparison.training_lengths
        for row in paper_rows(comparison, length)
    ]


def settings_of(runs: Sequence[Run]) -> tuple[dict[str, list[Any]], Settings]:
    """({key: its value in each run} of the settings that differ, {key: value} of those that all runs share)."""
    settings = [shown(run.settings) for run in runs]
    keys = differing(settings)
    shared = {key: value for key, value in settings[0].items() if key not in keys}
    return {key: [each.get(key) for each in settings] for key in keys}, shared


def to_html(comparison: Comparison, title: str, images: dict[str, bytes]) -> str:
    """One page with `images` (PNG files by name) inside; text of users is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    differ, shared = settings_of(comparison.runs)
    figures = [(base64.b64encode(data).decode(), FIGURES[name]) for name, data in images.items()]
    template = environment.get_template(TEMPLATE)
    return template.render(
        title=title, comparison=comparison, sheets=sheets(comparison), figures=figures, differ=differ, shared=shared, papers=WARNING
    )
