"""Turns text corpora into token files: `<output-prefix>_<key>_document.bin/.idx`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script from any folder

from megatron.config.tokenizer import TokenizerConfig  # noqa: E402
from megatron.data.command import ProgressPrinter, run_command  # noqa: E402
from megatron.data.preprocess import Job, output_prefixes, preprocess  # noqa: E402
from megatron.tokenizer.build import TOKENIZERS  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    formats = ".jsonl, .json, .txt, .dat, all also with .zst, .gz or .xz; .tar, .zip"
    parser.add_argument("--input", nargs="+", required=True, help=f"files, with commas or spaces between them: {formats}")
    parser.add_argument("--jsonl-keys", nargs="+", default=["text"], help="keys whose texts are taken, each into its own token file")
    parser.add_argument("--output-prefix", required=True, help="path of the token files, without _<key>_document")
    parser.add_argument("--tokenizer-type", choices=list(TOKENIZERS), default="HFTokenizer")
    parser.add_argument("--vocab-file", help="see vocab_file in configs/neox_arguments.md")
    parser.add_argument("--merge-file", help="merges.txt of a GPT2BPETokenizer")
    parser.add_argument("--append-eod", action="store_true", help="end every document with the end-of-document token")
    parser.add_argument("--dataset-impl", choices=["mmap"], default="mmap", help="token files are always memory-mapped")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenise")
    parser.add_argument("--num-docs", type=int, help="number of documents, if known, for the time left")
    parser.add_argument("--log-interval", type=int, default=1000, help="documents between progress lines")
    options = parser.parse_args(arguments)
    options.input = [path for entry in options.input for path in entry.split(",") if path]
    options.jsonl_keys = [key for entry in options.jsonl_keys for key in entry.split(",") if key]
    for name in ("input", "jsonl_keys"):
        if not getattr(options, name):
            parser.error(f"--{name.replace('_', '-')} names nothing; give at least one")
    if "" in (options.vocab_file, options.merge_file):
        parser.error("--vocab-file and --merge-file must not be empty; name a file or leave them out")
    for name in ("workers", "log_interval"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    tokenizer = TokenizerConfig(tokenizer_type=options.tokenizer_type, vocab_file=options.vocab_file, merge_file=options.merge_file)
    job = Job(tokenizer, tuple(options.jsonl_keys), options.append_eod)
    printer = ProgressPrinter(options.log_interval, options.num_docs)
    printer.finish(preprocess(options.input, options.output_prefix, job, workers=options.workers, report=printer))
    for prefix in output_prefixes(options.output_prefix, job.keys):
        print(f"{prefix}.bin {prefix}.idx")


if __name__ == "__main__":
    run_command(main)
