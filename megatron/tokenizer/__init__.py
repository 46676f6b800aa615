"""Text <-> token ids, over the Hugging Face `tokenizers` library."""

from megatron.tokenizer.base import Tokenizer, TokenizerError
from megatron.tokenizer.build import build_tokenizer
from megatron.tokenizer.padding import padded_vocab_size

__all__ = ["Tokenizer", "TokenizerError", "build_tokenizer", "padded_vocab_size"]
