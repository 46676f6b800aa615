"""How long a sequence may be for xPos: its factors grow exponentially towards both ends. Needs no torch, so that a run finds out early."""

import math

GAMMA = 0.4
ROOM = 64.0  # for the components that are multiplied
LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38, "fp32": 3.4028e38}


def longest_span(scale_base: float, largest: float, largest_score: float) -> int:
    """Tokens from the first to the last position, where queries and keys hold numbers up to `largest`, scores up to `largest_score`.

    A factor at either end leaves room in its type, and so does a product of two in the scores': those of keys after their query grow, and
    a mask that adds minus infinity must find a finite number.
    """
    fastest = -math.log(GAMMA / (1 + GAMMA)) / scale_base  # of pair 0, a position
    return int(min(2 * math.log(largest / ROOM), math.log(largest_score / ROOM**2)) / fastest)
