"""Tables as text: CSV with all digits, and Markdown and LaTeX as they are read, the best in bold."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tools.analysis.comparison import Cell, Comparison, Table, show
from tools.analysis.papers import WARNING, PaperRow, paper_rows

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "∞": r"$\infty$"} | {
    character: f"\\{character}" for character in "&%$#_{}"
}
SPREAD = "± is the standard deviation over the seeds, or of a single seed the standard error over the evaluated sequences."
BEST = "Bold: the lowest perplexity of each length."
CAPTIONS = {
    "perplexity": f"{BEST} {SPREAD}",
    "gain": "Loss with only the training length as context, less that with the whole sequence, in nats a token: above 0 the longer context "
    f"helps, 0 is a local model, below 0 it is harmed. {SPREAD}",
}


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a sheet."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table ready to be written in any format."""

    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    texts: int  # how many columns at the left hold text


def sheets(comparison: Comparison) -> list[Sheet]:
    """All tables, training length by training length, and after those of each the papers' figures where there are any."""
    found = []
    for training_length in comparison.training_lengths:
        tables = [table for table in comparison.tables if table.training_length == training_length]
        found += [measured(table, comparison.split) for table in tables]
        if rows := paper_rows(comparison, training_length):
            found.append(beside_papers([table for table in tables if table.quantity == "perplexity"], rows, training_length))
    return found


def measured(table: Table, split: str) -> Sheet:
    """A table of measured figures."""
    rows = []
    for method, cells in table.rows:
        entries = (
            Entry(write(cells[length], table.quantity), method.label in table.best(length)) if length in cells else Entry("")
            for length in table.lengths
        )
        rows.append((Entry(method.label), Entry(str(len(method.runs))), *entries))
    what = "Information gain" if table.quantity == "gain" else f"Perplexity, {table.name}"
    title = f"{what}, trained at {table.training_length:,} ({split} split)"
    lengths = [f"{length:,}" + (" (trained)" if length == table.training_length else "") for length in table.lengths]
    return Sheet(title, CAPTIONS[table.quantity], ("method", "seeds", *lengths), tuple(rows), 1)


def beside_papers(tables: Sequence[Table], papers: Sequence[PaperRow], training_length: int) -> Sheet:
    """The papers' perplexities, and above those of each method what was measured here."""
    rows = [(row.method.label, row.source, row.perplexities) for row in papers]
    named = dict.fromkeys(label for label, _, _ in rows)
    here = [
        (method.label, f"measured here: {table.name}", {length: show(each.mean) for length, each in cells.items()})
        for table in tables
        for method, cells in table.rows
        if method.label in named
    ]
    ordered = [row for label in named for row in (*here, *rows) if row[0] == label]
    lengths = sorted({length for _, _, cells in ordered for length in cells})
    return Sheet(
        f"The papers' figures beside those measured here, trained at {training_length:,}",
        WARNING,
        ("method", "source", *(f"{length:,}" + (" (trained)" if length == training_length else "") for length in lengths)),
        tuple((Entry(label), Entry(source), *(Entry(cells.get(length, "")) for length in lengths)) for label, source, cells in ordered),
        2,
    )


def write(cell: Cell, quantity: str) -> str:
    """A mean with what stands behind ±, where it is known."""
    if quantity == "gain":
        return f"{cell.mean:+.4f}" + (f" ± {cell.spread:.4f}" if known(cell.spread) else "")
    return show(cell.mean) + (f" ± {show(cell.spread)}" if known(cell.spread) and math.isfinite(cell.mean) else "")


def known(spread: float | None) -> bool:
    """Whether there is a finite number behind ±."""
    return spread is not None and math.isfinite(spread)


def to_markdown(comparison: Comparison) -> str:
    """All sheets, after the notes."""
    parts = [f"> **Note:** {markdown(note)}" for note in comparison.notes]
    for sheet in sheets(comparison):
        head = [markdown(name) for name in sheet.head]
        marks = ["---" if column < sheet.texts else "---:" for column in range(len(head))]
        rows = [[f"**{markdown(entry.text)}**" if entry.bold else markdown(entry.text) for entry in row] for row in sheet.rows]
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, marks, *rows)]
        parts.append("\n".join([f"## {markdown(sheet.title)}", "", *lines, "", markdown(sheet.caption)]))
    return "\n\n".join(parts) + "\n"


def markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def to_latex(comparison: Comparison) -> str:
    """All sheets as `tabular`, which no package is needed for, after the notes."""
    parts = [f"\\textbf{{Note:}} {latex(note)}\n" for note in comparison.notes]
    for sheet in sheets(comparison):
        rows = [[f"\\textbf{{{latex(entry.text)}}}" if entry.bold else latex(entry.text) for entry in row] for row in sheet.rows]
        columns = "l" * sheet.texts + "r" * (len(sheet.head) - sheet.texts)
        lines = [" & ".join(cells) + r" \\" for cells in ([latex(name) for name in sheet.head], *rows)]
        body = [f"\\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
        parts.append("\n".join([f"\\textbf{{{latex(sheet.title)}}}", "", *body, "", latex(sheet.caption), ""]))
    return "\n".join(parts)


def latex(text: str) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(LATEX.get(character, character) for character in text)


def to_csv(comparison: Comparison) -> str:
    """One row for each method of each table and for each row of the papers: all digits; a column a length, and one for what is behind ±."""
    papers = {length: paper_rows(comparison, length) for length in comparison.training_lengths}
    measured = {length for table in comparison.tables for length in table.lengths}
    lengths = sorted(measured | {length for rows in papers.values() for row in rows for length in row.perplexities})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    first = ["source", "training_length", "split", "protocol", "stride", "quantity", "method", "seeds"]
    writer.writerow([*first, *lengths, *(f"± {length}" for length in lengths), "notes"])
    notes = " ".join(comparison.notes)
    for table in comparison.tables:
        for method, cells in table.rows:
            about = ["measured", table.training_length, comparison.split, table.protocol, table.stride, table.quantity]
            means = [cells[length].mean if length in cells else None for length in lengths]
            spreads = [cells[length].spread if length in cells else None for length in lengths]
            writer.writerow([*about, method.label, len(method.runs), *means, *spreads, notes])
    for training_length, rows in papers.items():
        for row in rows:
            values = [row.perplexities.get(length) for length in lengths]
            writer.writerow(
                [row.source, training_length, "", "", "", "perplexity", row.method.label, "", *values, *[""] * len(lengths), WARNING]
            )
    return file.getvalue()
