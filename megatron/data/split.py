"""Which documents are for training, validation and testing."""

from megatron.data.errors import DataError


def parse_split(split: str) -> tuple[float, float, float]:
    """GPT-NeoX's `split`: up to three shares, between commas or slashes, of any sum. "969, 30, 1" -> (0.969, 0.03, 0.001)."""
    separator = "," if "," in split else "/"
    try:
        shares = [float(part) for part in split.split(separator)]
    except ValueError as error:
        raise DataError(f'split: {split!r} is not a list of numbers; write for example "969, 30, 1"') from error
    if len(shares) > 3 or not all(0 <= share < float("inf") for share in shares) or sum(shares) <= 0:
        raise DataError(f"split: {split!r} must be one to three shares (train, valid, test), none below zero and not all zero")
    shares += [0.0] * (3 - len(shares))
    train, valid, test = (share / sum(shares) for share in shares)
    return train, valid, test


def split_documents(documents: int, split: str) -> tuple[range, range, range]:
    """The first documents are for training, the next for validation, the last for testing; boundaries fall where GPT-NeoX puts them."""
    counts = [round(share * documents) for share in parse_split(split)]
    surplus = sum(counts) - documents  # of rounding; taken from the first part
    first, second = (min(max(boundary - surplus, 0), documents) for boundary in (counts[0], counts[0] + counts[1]))
    return range(first), range(first, second), range(second, documents)
