"""Writes the sources of Python's standard library as JSON lines: a corpus that needs no download."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script from any folder

from megatron.data.command import run_command  # noqa: E402
from megatron.data.stdlib_corpus import write_stdlib_corpus  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="the .jsonl to write")
    options = parser.parse_args(arguments)
    corpus = write_stdlib_corpus(options.output)
    print(f"{options.output}: {corpus.documents} modules, {corpus.text_bytes / 1e6:.1f} MB; left out {corpus.skipped}, empty or not UTF-8")


if __name__ == "__main__":
    run_command(main)
