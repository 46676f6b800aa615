"""Joins token files of one type into one, documents and their sequences kept."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script from any folder

from megatron.data.command import run_command  # noqa: E402
from megatron.data.errors import DataError  # noqa: E402
from megatron.data.token_file import TokenFile, TokenFileWriter  # noqa: E402


def prefixes(inputs: list[str]) -> list[str]:
    """Each input is a prefix, or a folder that stands for all token files in it, by name."""
    found = []
    for entry in inputs:
        inside = sorted(str(path.with_suffix("")) for path in Path(entry).glob("*.idx")) if Path(entry).is_dir() else [entry]
        if not inside:
            raise DataError(f"{entry}: no .idx files in this folder")
        found += inside
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="+", required=True, help="prefixes of token files, or folders of them")
    parser.add_argument("--output-prefix", required=True)
    options = parser.parse_args(arguments)
    sources = [TokenFile(prefix) for prefix in prefixes(options.input)]
    with TokenFileWriter(options.output_prefix, sources[0].dtype) as writer:
        for source in sources:
            writer.add_file(source)
    print(f"{options.output_prefix}: {writer.documents:,} documents, {writer.total_tokens:,} tokens of {len(sources)} files")


if __name__ == "__main__":
    run_command(main)
