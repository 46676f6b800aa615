"""Trains a byte-level BPE vocabulary, with the token <|endoftext|>, and writes it as a tokenizer.json for HFTokenizer."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script from any folder

from megatron.data.command import run_command  # noqa: E402
from megatron.data.readers import CorpusReader, parse_record  # noqa: E402
from megatron.tokenizer.training import train_bpe  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="+", required=True, help="corpora, as for preprocess_data.py")
    parser.add_argument("--jsonl-keys", nargs="+", default=["text"])
    parser.add_argument("--vocab-size", type=int, default=50_257, help="entries at most")
    parser.add_argument("--output", required=True, help="the tokenizer.json to write")
    options = parser.parse_args(arguments)
    texts = (text for record in CorpusReader(options.input) for text in parse_record(record, options.jsonl_keys))
    size = train_bpe(texts, options.vocab_size, options.output)
    print(f"{options.output}: {size} entries")


if __name__ == "__main__":
    run_command(main)
