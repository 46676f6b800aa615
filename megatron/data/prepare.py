"""From a corpus's name or file to a tokenizer and a token file, making again only what is out of date."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megatron.config.tokenizer import TokenizerConfig
from megatron.data.atomic import atomic_outputs
from megatron.data.errors import DataError
from megatron.data.preprocess import Job, Progress, output_prefixes, preprocess
from megatron.data.readers import CorpusReader, parse_record
from megatron.data.stdlib_corpus import write_stdlib_corpus
from megatron.data.token_file import TokenFile
from megatron.tokenizer import build_tokenizer
from megatron.tokenizer.training import train_bpe

STDLIB = "stdlib"
RECORD = "made_from.json"


@dataclass(frozen=True)
class Prepared:
    """What a run's YAML needs: `data_path`, and the tokenizer's keys."""

    data_path: str
    tokenizer: TokenizerConfig


def prepare(
    corpus: str,
    directory: str | Path,
    tokenizer: TokenizerConfig,
    *,
    vocab_size: int = 4096,
    workers: int = 1,
    say: Callable[[str], None] = print,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Prepared:
    """Makes `<directory>/<name>/` with a token file of `corpus`, "stdlib" or a file that `CorpusReader` knows, and its tokenizer.

    An HFTokenizer without `vocab_file` is trained on the corpus, with `vocab_size` entries. Every document ends with the tokenizer's
    end-of-document token. What is there already and was made from the same things is used as it is.
    """
    name = STDLIB if corpus == STDLIB else Path(corpus).name.split(".")[0]
    folder = Path(directory) / name
    kept = _Kept(folder, say)
    path = Path(corpus)
    if corpus == STDLIB:
        path = folder / f"{STDLIB}.jsonl"
        kept.make([path], {"python": platform.python_version()}, lambda: write_stdlib_corpus(path))
    if not any(_texts(path)):  # the reader, too, says what is wrong with the file before anything is made from it
        raise DataError(f"{path}: every text is empty: there is nothing to train on; give a corpus with texts under the key `text`")
    source = {"corpus": os.path.abspath(path), "bytes": path.stat().st_size, "changed": path.stat().st_mtime_ns}
    if tokenizer.tokenizer_type == "HFTokenizer" and tokenizer.vocab_file is None:
        vocabulary = folder / "tokenizer.json"
        kept.make([vocabulary], {**source, "vocab_size": vocab_size}, lambda: train_bpe(_texts(path), vocab_size, str(vocabulary)))
        tokenizer = tokenizer.model_copy(update={"vocab_file": str(vocabulary)})
    build_tokenizer(tokenizer)
    [data_path] = output_prefixes(folder / name, ["text"])
    job = Job(tokenizer, append_eod=True)
    kept.make(
        [Path(f"{data_path}.bin"), Path(f"{data_path}.idx")],
        {**source, **_identity(tokenizer)},
        lambda: preprocess([path], folder / name, job, workers=workers, report=report),
    )
    TokenFile(data_path)
    return Prepared(data_path, tokenizer)


def _texts(path: Path) -> Iterator[str]:
    for record in CorpusReader([path]):
        yield from parse_record(record, ["text"])


def _identity(tokenizer: TokenizerConfig) -> dict:
    return {
        "tokenizer_type": tokenizer.tokenizer_type,
        "vocabulary": _digest(tokenizer.vocab_file),
        "merges": _digest(tokenizer.merge_file),
    }


def _digest(file: str | None) -> str | None:
    """Of a file's content; a folder's or an encoding's name stands for itself."""
    if file is None or not Path(file).is_file():
        return file
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


class _Kept:
    """Remembers in the folder's `made_from.json` what each file was made from."""

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self._path, self._say = folder / RECORD, say
        try:
            self._record = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self._record = {}
        except ValueError as error:
            raise DataError(f"{self._path}: damaged ({error}); remove it") from error

    def make(self, products: list[Path], source: dict, build: Callable[[], object]) -> None:
        """Calls `build` unless all `products` are there and were made from `source`."""
        name = products[0].name
        if self._record.get(name) == source and all(product.is_file() for product in products):
            self._say(f"{products[0]} is there")
            return
        self._say(f"making {products[0]}")
        build()
        self._record[name] = source
        with atomic_outputs(self._path) as (file,):
            file.write(json.dumps(self._record, indent=2).encode("utf-8") + b"\n")
