"""Seam 1: what a positional encoding may do to a transformer, as hooks whose defaults do nothing.

Shapes: b batch, h query heads, q / k number of query / key positions, d head dim. `positions` are integer tensors, [q] or [b, q]:
always given, never inferred from a shape, so that cached decoding, padding and lengths beyond the training length are right by construction.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig

Hook = Literal["embed", "rotate", "bias", "weight", "scores", "adjust"]


class PositionalEncoding(nn.Module):
    """One method. A subclass names the hooks it overrides in `acts_on`; attention backends are chosen or refused by that."""

    acts_on: frozenset[Hook] = frozenset()
    translation_invariant: bool = True  # bias and weight depend on the distance alone (and `distance_bias` exists where "bias" is in acts_on)
    shared: bool = False  # one instance serves all layers (True) or each layer has its own (False)
    max_length: int | None = None  # longest sequence the method can represent; None: any
    score_map: nn.Module | None = None  # a DAPE map over the heads, applied to (scores, bias), or None

    def __init__(self, config: PositionalConfig, *, heads: int, head_dim: int, hidden_size: int, seq_length: int, max_position_embeddings: int):
        """Every method is built from the same facts; `seq_length` is the training length, `hidden_size` = heads * head_dim."""
        super().__init__()
        self.heads, self.head_dim, self.hidden_size = heads, head_dim, hidden_size

    def initialise(self, generator: torch.Generator, embedding_std: float) -> None:
        """Fill the method's parameters from `generator` (CPU). Called once, after construction; `embedding_std` is the model's own."""

    def embed(self, positions: Tensor) -> Tensor:
        """[q] or [b, q] -> [..., q, hidden], added to the word embeddings."""
        raise NotImplementedError

    def rotate(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [b, h, q, d], k [b, g, k, d] (g key/value heads) -> the same shapes, rotated."""
        return q, k

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., q], [..., k] -> [..., h, q, k], float32 (float64 parameters give float64), added to the scores."""
        raise NotImplementedError

    def distance_bias(self, distances: Tensor) -> Tensor:
        """Non-negative distances [n] -> [h, n]: `bias` of a translation-invariant method, as a function of |i - j|."""
        raise NotImplementedError

    def weight(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., q], [..., k] -> [..., h, q, k], multiplying the scores before the bias is added."""
        raise NotImplementedError

    def scores(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """q [b, h, q, d], k [b, h, k, d] -> [b, h, q, k]: replaces q.k / sqrt(d)."""
        raise NotImplementedError

    def adjust(self, scores: Tensor, q: Tensor, allowed: Tensor) -> Tensor:
        """scores [b, h, q, k], q [b, h, q, d], allowed bool [..., q, k] -> scores with a content-dependent term added."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """Figures of the learnt parameters, for the metrics at each evaluation."""
        return {}


class DistanceEncoding(PositionalEncoding):
    """A bias that is a function of the distance |i - j| alone: a subclass writes `distance_bias`."""

    acts_on = frozenset({"bias"})

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances = pairwise_distances(query_positions, key_positions)  # [..., q, k]
        table = self.distance_bias(torch.arange(int(distances.max()) + 1, device=distances.device))  # [h, n]
        return table[:, distances].movedim(0, -3)  # [..., h, q, k]


def pairwise_distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[..., q], [..., k] -> |i - j| [..., q, k], integers (exact at any length and in any activation type)."""
    return (query_positions[..., :, None] - key_positions[..., None, :]).abs()
