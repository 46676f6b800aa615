"""A curve over the evaluation length at one step, for the places that show pictures."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Perplexity by length."""

    name: str  # "valid/perplexity by length"
    step: int
    lengths: tuple[int, ...]
    perplexities: tuple[float, ...]
    training_length: int

    def points(self) -> list[tuple[int, float]]:
        """(length, perplexity) where that is a finite number, the shortest first."""
        return sorted((x, y) for x, y in zip(self.lengths, self.perplexities, strict=True) if math.isfinite(y))


def draw(curve: Curve) -> np.ndarray:
    """uint8 [height, width, 4]: the curve on a log2 axis, the training length marked. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    axes.axvline(curve.training_length, color="grey", linestyle="--", linewidth=1, label="training length")
    lengths, perplexities = zip(*curve.points(), strict=True)
    axes.plot(lengths, perplexities, marker="o", label=f"step {curve.step:,}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xticks([], minor=True)
    if max(perplexities) > 10 * min(perplexities):
        axes.set_yscale("log")
    axes.set(xlabel="evaluation length (tokens)", ylabel="perplexity", title=curve.name)
    axes.legend()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
