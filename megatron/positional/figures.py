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


@torch.no_grad()
def effective_lengths(encoding: "PositionalEncoding") -> dict[str, float]:
    """Per head, the distance in tokens at which the bias first falls below -2; the furthest one tried where it never does.

    A bias that depends on the query's position too (FIRE) is taken at the last position of the training length.
    """
    reach = FURTHEST if encoding.translation_invariant else encoding.seq_length - 1
    positions = torch.arange(reach + 1, device=encoding.like.device)
    bias = encoding.bias(positions[-1:], positions)[:, 0].flip(-1)  # [h, distances 0 .. reach]
    below = bias < NEGLIGIBLE
    lengths = torch.where(below.any(dim=-1), below.int().argmax(dim=-1), reach)
    return {f"effective_length_head{head}": float(length) for head, length in enumerate(lengths.tolist())}
