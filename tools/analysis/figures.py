"""Figures: perplexity by length, information gain by length, loss by position; a panel for each training length and protocol."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tools.analysis.comparison import Comparison, PositionCurve, Table
from tools.analysis.names import Style, styles

PANEL = (5.2, 4.0)  # inches
LEGEND = 2.6  # inches at the right


def draw_all(comparison: Comparison) -> dict[str, Figure]:
    """{file name: figure} of all that there is something to draw for."""
    look = styles([(method.label, method.encoding, method.kernel) for method in comparison.methods])
    found = {
        "perplexity.png": [table for table in comparison.tables if table.quantity == "perplexity"],
        "position_wise.png": list(comparison.curves),
        "information_gain.png": [table for table in comparison.tables if table.quantity == "gain"],
    }
    drawn = {name: draw(what, comparison.split, look) for name, what in found.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw(what: Sequence[Table] | Sequence[PositionCurve], split: str, look: dict[str, Style]) -> Figure | None:
    """A row of panels for each protocol, a column for each training length. None where nothing is finite."""
    panels: dict[tuple[str, int], list[tuple[str, list, list, list]]] = {}
    for each in what:
        lines = panels.setdefault((each.name, each.training_length), [])
        lines += [line for line in lines_of(each) if line[1]]
    panels = {key: lines for key, lines in panels.items() if lines}
    if not panels:
        return None
    names, trained = list(dict.fromkeys(name for name, _ in panels)), sorted({length for _, length in panels})
    figure = Figure(figsize=(PANEL[0] * len(trained) + LEGEND, PANEL[1] * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(names), len(trained), squeeze=False)
    for row, name in zip(grid, names, strict=True):
        for axes, length in zip(row, trained, strict=True):
            if (name, length) not in panels:
                axes.set_axis_off()
                continue
            panel(axes, panels[name, length], look)
            axes.axvline(length, color="grey", linestyle=(0, (1, 1)), linewidth=1.5, label="training length")
            axes.set_title(f"{name}, trained at {length:,} ({split} split)", fontsize=10)
            axes.grid(alpha=0.3)
            label_axes(axes, what[0])
    legend = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = [*(label for label in look if label in legend), "training length"]
    figure.legend([legend[label] for label in order], order, loc="outside right upper", fontsize=8, handlelength=3.5)
    return figure


def lines_of(each: Table | PositionCurve) -> list[tuple[str, list[float], list[float], list[float]]]:
    """(label, x, y, half width of the error bar) of each line; values that are not finite are left out."""
    if isinstance(each, PositionCurve):
        rows = [(each.method.label, zip(each.middles, each.losses, each.spreads, strict=True))]
    else:
        rows = [(method.label, ((length, cell.mean, cell.spread) for length, cell in cells.items())) for method, cells in each.rows]
    lines = []
    for label, points in rows:
        shown = [(x, y, spread if spread is not None and math.isfinite(spread) else 0.0) for x, y, spread in points if math.isfinite(y)]
        lines.append((label, *([point[part] for point in shown] for part in range(3))))
    return lines


def panel(axes: Axes, lines: Sequence[tuple[str, list[float], list[float], list[float]]], look: dict[str, Style]) -> None:
    """The lines, each with its spread: as bars at points far apart, as a band around many."""
    for label, x, y, spread in lines:
        style = look[label]
        kwargs = {"color": style.colour, "linestyle": style.line, "linewidth": 1.6, "label": label}
        if len(x) > 20:
            axes.plot(x, y, **kwargs)
            low, high = ([value + sign * width for value, width in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
        else:
            axes.errorbar(x, y, yerr=spread, marker=style.marker, markersize=4.5, capsize=2.5, elinewidth=0.8, **kwargs)


def label_axes(axes: Axes, kind: Table | PositionCurve) -> None:
    """Names and ticks: lengths and positions on a log2 axis, perplexities on a logarithmic one."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelrotation=45, labelsize=8)
    axes.tick_params(axis="y", labelsize=8)
    if isinstance(kind, PositionCurve):
        axes.set(xlabel="position in the sequence (tokens)", ylabel="loss (nats a token)")
        return
    axes.set_xlabel("evaluation length (tokens)")
    lengths = sorted({x for line in axes.lines for x in line.get_xdata() if x >= 1})
    axes.set_xticks(lengths)
    axes.xaxis.set_minor_locator(NullLocator())
    if kind.quantity == "gain":
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("information gain (nats a token)")
        return
    axes.set_ylabel("perplexity")
    low, high = axes.get_ylim()
    axes.set_yscale("log")
    wide = low <= 0 or high > 10 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
