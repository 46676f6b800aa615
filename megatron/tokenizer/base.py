"""What every tokenizer offers."""

from collections.abc import Iterable
from typing import Protocol

from megatron.errors import UserError

END_OF_DOCUMENT = "<|endoftext|>"


class TokenizerError(UserError):
    """A tokenizer that cannot be built: names the file and the configuration key."""


class Tokenizer(Protocol):
    """Text <-> token ids.

    `name` is its `tokenizer_type`; ids are 0 .. vocab_size - 1; `eod` is the id that ends a document, None where the vocabulary has none.
    """

    name: str
    vocab_size: int
    eod: int | None

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...
