"""Which tokenizer turns text into token ids."""

from typing import Literal

from megatron.config.base import Group, key


class TokenizerConfig(Group):
    """GPT-NeoX's tokenizer keys."""

    tokenizer_type: Literal["HFTokenizer", "GPT2BPETokenizer", "HFGPT2Tokenizer", "CharLevelTokenizer", "TiktokenTokenizer"] = key(
        "GPT2BPETokenizer", "Kind of tokenizer."
    )
    vocab_file: str | None = key(
        None,
        "HFTokenizer: tokenizer.json; GPT2BPETokenizer: vocab.json; HFGPT2Tokenizer: a folder or tokenizer.json; "
        "TiktokenTokenizer: an encoding's name.",
        min_length=1,
    )
    merge_file: str | None = key(None, "GPT2BPETokenizer: merges.txt.", min_length=1)
