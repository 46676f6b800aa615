"""The tokens that end a segment of the text, as BiPE asks for them: are they the tokenizer's?"""

from megatron.config import Config, ConfigError
from megatron.tokenizer.base import Tokenizer


def check_segment_tokens(config: Config, tokenizer: Tokenizer) -> None:
    """Raises ConfigError where `bipe_segment_tokens` names ids that the tokenizer does not have."""
    key, size = "bipe_segment_tokens", tokenizer.vocab_size
    unknown = [token for token in config.positional.bipe_segment_tokens or [] if not 0 <= token < size]
    if unknown:
        raise ConfigError(
            f"{config.place(key)}{key}: {', '.join(map(str, unknown))} is no id of the tokenizer {tokenizer.name}, whose ids are "
            f"0 ... {size - 1}; configs/README.md shows how to find them."
        )
