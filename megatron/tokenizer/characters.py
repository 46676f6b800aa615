"""A tokenizer without a vocabulary: one token per byte."""

from collections.abc import Iterable

BYTES = 256


class CharLevelTokenizer:
    """UTF-8 bytes as tokens, with GPT-NeoX's vocabulary of 512 ids and end of document 0, so that its token files mean the same here.

    Every text round-trips exactly, newlines included. Ids from 256 on stand for nothing and decode to nothing.
    """

    name = "CharLevelTokenizer"
    vocab_size = 512
    eod = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(token for token in ids if token < BYTES).decode("utf-8", errors="replace")
