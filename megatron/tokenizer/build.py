"""From the configuration's `tokenizer_type` to a tokenizer."""

from megatron.config.tokenizer import TokenizerConfig
from megatron.tokenizer.base import Tokenizer
from megatron.tokenizer.characters import CharLevelTokenizer
from megatron.tokenizer.huggingface import GPT2BPETokenizer, HFGPT2Tokenizer, HFTokenizer
from megatron.tokenizer.tiktoken_encoding import TiktokenTokenizer

TOKENIZERS = {
    "HFTokenizer": lambda config: HFTokenizer(config.vocab_file),
    "GPT2BPETokenizer": lambda config: GPT2BPETokenizer(config.vocab_file, config.merge_file),
    "HFGPT2Tokenizer": lambda config: HFGPT2Tokenizer(config.vocab_file),
    "CharLevelTokenizer": lambda config: CharLevelTokenizer(),
    "TiktokenTokenizer": lambda config: TiktokenTokenizer(config.vocab_file),
}


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Reads the tokenizer's files. Raises TokenizerError where one is missing or damaged."""
    return TOKENIZERS[config.tokenizer_type](config)
