"""Tokenizers read from Hugging Face's and GPT-2's files. `tokenizers` and `transformers` are imported by the class that needs them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.tokenizer.base import END_OF_DOCUMENT, TokenizerError

if TYPE_CHECKING:
    import tokenizers


class HFTokenizer:
    """A `tokenizer.json`. End of document is `<|endoftext|>`, as in GPT-NeoX."""

    name = "HFTokenizer"

    def __init__(self, vocab_file: str | None):
        from tokenizers import Tokenizer

        path = _existing_file(self.name, "vocab_file", vocab_file, "a tokenizer.json")
        try:
            self._set(Tokenizer.from_file(str(path)))
        except Exception as error:  # `tokenizers` raises plain Exception
            raise TokenizerError(f"vocab_file: {path} is not a tokenizer.json that `tokenizers` can read: {error}") from error

    def _set(self, tokenizer: "tokenizers.Tokenizer", end_of_document: str | None = END_OF_DOCUMENT) -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1  # some vocabularies have gaps
        self.eod = vocabulary.get(end_of_document)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)


class GPT2BPETokenizer(HFTokenizer):
    """GPT-2's byte-level BPE from `vocab.json` and `merges.txt`. A text that spells `<|endoftext|>` is not an end of document."""

    name = "GPT2BPETokenizer"

    def __init__(self, vocab_file: str | None, merge_file: str | None):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        vocab = _existing_file(self.name, "vocab_file", vocab_file, "a vocab.json")
        merges = _existing_file(self.name, "merge_file", merge_file, "a merges.txt")
        try:
            tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
        except Exception as error:
            raise TokenizerError(f"vocab_file {vocab} and merge_file {merges} are not a byte-level BPE vocabulary: {error}") from error
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        self._set(tokenizer)


class HFGPT2Tokenizer(HFTokenizer):
    """A folder saved by `transformers`, or a tokenizer.json; never fetched from the network. End of document is the tokenizer's own eos."""

    name = "HFGPT2Tokenizer"

    def __init__(self, vocab_file: str | None):
        path = _existing(self.name, "vocab_file", vocab_file, "a folder saved by transformers, or a tokenizer.json")
        try:
            from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast
        except ImportError as error:
            raise TokenizerError("tokenizer_type: HFGPT2Tokenizer needs the package transformers: pip install transformers") from error
        if path.is_dir() and not ((path / "tokenizer.json").is_file() or (path / "vocab.json").is_file()):
            raise TokenizerError(f"vocab_file: the folder {path} holds neither tokenizer.json nor vocab.json and merges.txt")
        try:
            if path.is_file():
                whole = PreTrainedTokenizerFast(tokenizer_file=str(path))
            elif (path / "tokenizer.json").is_file():
                whole = PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
            else:
                whole = GPT2TokenizerFast.from_pretrained(str(path), local_files_only=True)
        except Exception as error:  # many kinds, none of them documented
            raise TokenizerError(f"vocab_file: transformers cannot read a tokenizer from {path}: {error}") from error
        self._set(whole.backend_tokenizer, whole.eos_token or END_OF_DOCUMENT)


def _existing(tokenizer: str, key: str, value: str | None, what: str) -> Path:
    if value is None:
        raise TokenizerError(f"{key}: {tokenizer} needs {what}; the key is not set")
    path = Path(value)
    if not path.exists():
        raise TokenizerError(f"{key}: {path} does not exist; {tokenizer} needs {what}")
    return path


def _existing_file(tokenizer: str, key: str, value: str | None, what: str) -> Path:
    path = _existing(tokenizer, key, value, what)
    if not path.is_file():
        raise TokenizerError(f"{key}: {path} is a folder; {tokenizer} needs {what}")
    return path
