"""Runs against each other: the papers' tables and figures, and one HTML report that needs no other file.

    python tools/analysis/compare.py logs/alibi logs/kerple logs/dape_kerple_seed1 logs/dape_kerple_seed2 --output compare

Each RUN is a log folder: its config.yml, and its evaluations in evaluations.jsonl, metrics.jsonl or results.json. Runs that differ in
nothing but the seed are averaged. Written are table.csv, table.md, table.tex, compare.json (every number), perplexity.png,
position_wise.png and information_gain.png (where there is such data) and report.html. Each training length has tables of its own, and runs
on other tokens (another tokenizer or text) are refused, for their perplexities cannot be compared.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import UserError  # noqa: E402
from megatron.files import check_writable, write_atomically  # noqa: E402
from tools.analysis.comparison import COMPARED, Comparison, compare  # noqa: E402
from tools.analysis.figures import draw_all  # noqa: E402
from tools.analysis.images import save  # noqa: E402
from tools.analysis.report import FIGURES, to_html, to_json  # noqa: E402
from tools.analysis.runs import Run, gather, read_run  # noqa: E402
from tools.analysis.tables import to_csv, to_latex, to_markdown  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a user's mistake."""
    options = parser().parse_args(arguments)
    try:
        comparison = compare(gather(read_runs(options)), options.split, known(options.protocol), options.anyway)
        written = write(comparison, options.output, options.title)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for note in comparison.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"wrote {', '.join(written)} to {options.output}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="log folder of a run")
    parser.add_argument("-o", "--output", type=Path, default=Path("compare"), help="folder to write (default: %(default)s)")
    parser.add_argument("--split", default="valid", help="split to show (default: %(default)s)")
    parser.add_argument("--step", type=int, help="evaluations of this training step (default: each run's last)")
    parser.add_argument("--protocol", nargs="+", default=list(COMPARED), help=f"of {', '.join(COMPARED)} (default: all there are)")
    parser.add_argument("--anyway", action="store_true", help="compare also where tokenizers or texts differ; every output then says so")
    parser.add_argument("--title", default="Comparison of positional encodings", help="title of the report (default: %(default)s)")
    return parser


def known(protocols: Sequence[str]) -> list[str]:
    """The protocols, each once; UserError where one is none that can be compared."""
    for name in protocols:
        if name not in COMPARED:
            raise UserError(f"--protocol: {name} is unknown. Choose from {', '.join(COMPARED)}.")
    return list(dict.fromkeys(protocols))


def read_runs(options: argparse.Namespace) -> list[Run]:
    """The runs; UserError where a folder is given twice."""
    folders = [folder.resolve() for folder in options.runs]
    for index, folder in enumerate(folders):
        if folder in folders[:index]:
            raise UserError(f"{options.runs[index]}: is given twice. Give each run once.")
    return [read_run(folder, options.split, options.step) for folder in options.runs]


def write(comparison: Comparison, output: Path, title: str) -> list[str]:
    """Write all files into `output`; figures of an earlier comparison that this one has not are removed. Returns the names."""
    check_writable(output)
    figures = draw_all(comparison)
    for name, figure in figures.items():
        save(figure, output / name)
    for name in FIGURES.keys() - figures.keys():
        (output / name).unlink(missing_ok=True)
    images = {name: (output / name).read_bytes() for name in figures}
    texts = {
        "table.csv": to_csv(comparison),
        "table.md": to_markdown(comparison),
        "table.tex": to_latex(comparison),
        "compare.json": to_json(comparison),
        "report.html": to_html(comparison, title, images),
    }
    for name, text in texts.items():
        write_atomically(output / name, text)
    return [*figures, *texts]


if __name__ == "__main__":
    sys.exit(main())
