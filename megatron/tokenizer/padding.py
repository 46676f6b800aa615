"""The size of the embedding table."""


def padded_vocab_size(vocab_size: int, divisible_by: int, model_parallel_size: int) -> int:
    """The smallest multiple of `divisible_by * model_parallel_size` that holds `vocab_size` ids.

    Ids from `vocab_size` on are padding: they exist in the table only, to make its size friendly to the hardware.
    """
    multiple = divisible_by * model_parallel_size
    return -(-vocab_size // multiple) * multiple
