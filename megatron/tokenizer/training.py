"""A new byte-level BPE vocabulary from texts."""

from collections.abc import Iterable

from megatron.data.atomic import atomic_outputs
from megatron.tokenizer.base import END_OF_DOCUMENT, TokenizerError

SMALLEST_VOCABULARY = 257  # every byte, and the end of document


def train_bpe(texts: Iterable[str], vocab_size: int, output: str) -> int:
    """Writes a `tokenizer.json` of at most `vocab_size` entries, `<|endoftext|>` among them, to `output`; returns its size.

    Any text can be encoded: all bytes are in the vocabulary. Raises TokenizerError when `vocab_size` cannot hold them.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise TokenizerError(f"a byte-level vocabulary needs at least {SMALLEST_VOCABULARY} entries; {vocab_size} were asked for")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    with atomic_outputs(output) as (file,):
        file.write(tokenizer.to_str(pretty=True).encode("utf-8"))
    return tokenizer.get_vocab_size()
