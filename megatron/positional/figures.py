"""Figures of learnt parameters, for the metrics and for the papers' analyses."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megatron.positional.base import PositionalEncoding

NEGLIGIBLE = -2.0  # KERPLE's measure: a key whose bias is below this hardly counts
FURTHEST = 32768  # tokens; longest effective length that is looked for


def over_heads(name: str, values: Tensor) -> dict[str, float]:
    """Smallest, mean and largest of values [h]."""
    values = values.float()
    return {f"{name}_min": values.min().item(), f"{name}_mean": values.mean().item(), f"{name}_max": values.max().item()}


def effective_lengths(encoding: "PositionalEncoding") -> dict[str, float]:
    """Figures of `effective_distances`, the furthest distance tried where the bias never falls so low.

    A bias that depends on the query's position too (FIRE) is taken at the last position of the training length.
    """
    reach = FURTHEST if encoding.translation_invariant else encoding.seq_length - 1
    lengths = effective_distances(encoding, reach)
    return {f"effective_length_head{head}": float(reach if length is None else length) for head, length in enumerate(lengths)}


@torch.no_grad()
def effective_distances(encoding: "PositionalEncoding", reach: int) -> list[int | None]:
    """Per head, the distance in tokens at which the bias of a query at position `reach` first falls below -2; None: never."""
    positions = torch.arange(reach + 1, device=encoding.like.device)
    bias = encoding.bias(positions[-1:], positions)[:, 0].flip(-1)  # [h, distances 0 .. reach]
    below = bias < NEGLIGIBLE
    return [distance if found else None for distance, found in zip(below.int().argmax(dim=-1).tolist(), below.any(dim=-1), strict=True)]
