"""Prepares a corpus for training: text, tokenizer and token file, under `<data-dir>/<name>/`. Running it again reuses what is there."""

import argparse
import os

from megatron.config.tokenizer import TokenizerConfig
from megatron.data.command import ProgressPrinter, run_command
from megatron.data.prepare import prepare
from megatron.tokenizer.build import TOKENIZERS


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", help="stdlib (the sources of Python's standard library), or a .jsonl, .jsonl.zst, .txt, ... of your own")
    parser.add_argument("-d", "--data-dir", default="data")
    parser.add_argument("-t", "--tokenizer", choices=list(TOKENIZERS), default="HFTokenizer")
    parser.add_argument("-v", "--vocab-file", help="an HFTokenizer without one is trained on the corpus")
    parser.add_argument("-m", "--merge-file")
    parser.add_argument("--vocab-size", type=int, default=4096, help="of a tokenizer trained here")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that tokenise")
    options = parser.parse_args(arguments)
    if "" in (options.vocab_file, options.merge_file):
        parser.error("--vocab-file and --merge-file must not be empty; name a file or leave them out")
    tokenizer = TokenizerConfig(tokenizer_type=options.tokenizer, vocab_file=options.vocab_file, merge_file=options.merge_file)
    prepared = prepare(
        options.corpus, options.data_dir, tokenizer, vocab_size=options.vocab_size, workers=options.workers, report=ProgressPrinter(500)
    )
    keys = {"data_path": prepared.data_path, **prepared.tokenizer.model_dump(exclude_none=True)}
    print("ready; the keys of a run on it:", *(f'  "{key}": "{value}",' for key, value in keys.items()), sep="\n")


if __name__ == "__main__":
    run_command(main)
