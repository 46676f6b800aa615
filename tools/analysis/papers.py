"""The papers' own figures, beside what was measured: of the same method and training length (paper_figures.yml)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.analysis.comparison import Comparison
from tools.analysis.names import departures
from tools.analysis.runs import Method

FIGURES = Path(__file__).with_name("paper_figures.yml")
WARNING = (
    "The papers' figures are of other models, on other data and with other tokenizers, as each row says. Compare the order of the methods "
    "and the course over the lengths; never the values."
)


@dataclass(frozen=True)
class PaperRow:
    """What a paper reports of a method that was measured too."""

    method: Method
    source: str  # "KERPLE: 162M, ArXiv, non_overlapping"
    perplexities: dict[int, str]  # by evaluation length, with the paper's digits


def paper_rows(comparison: Comparison, training_length: int) -> list[PaperRow]:
    """The papers' rows for the methods of one training length, method by method."""
    published = [each for each in read_figures() if int(each["training_length"]) == training_length]
    return [
        PaperRow(
            method,
            f"{each['paper']}: {each['size']}, {each['data']}, {each['protocol']}",
            {int(length): digits for length, digits in each["perplexity"][method.encoding.name].items()},
        )
        for method in comparison.methods
        if method.training_length == training_length and is_papers(method)
        for each in published
        if method.encoding.name in each["perplexity"]
    ]


def is_papers(method: Method) -> bool:
    """Whether a method is the papers' own form: nothing departs from it, and no kernel (of DAPE V2 no figure has both its lengths)."""
    return method.kernel == 1 and not departures(method.encoding, method.runs[0].settings)


def read_figures() -> Sequence[dict[str, Any]]:
    """The content of paper_figures.yml, numbers as they are written."""
    return yaml.load(FIGURES.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
