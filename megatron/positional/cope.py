"""Positions counted by gates: a key's position is the number of open gates from it to the query (CoPE; Golovneva et al. 2024)."""

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding


class Cope(PositionalEncoding):
    """Adds q_i.E[:, pos_ij], interpolated between the two nearest whole positions; E starts at zero and serves all heads."""

    acts_on = frozenset({"adjust"})
    translation_invariant = False

    def __init__(self, config: PositionalConfig, *, head_dim: int, **sizes: int):
        super().__init__(config, head_dim=head_dim, **sizes)
        self.embeddings = nn.Parameter(torch.zeros(head_dim, config.cope_max_position))  # E [d, P]

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        self.embeddings.zero_()

    def adjust(self, scores: Tensor, q: Tensor, allowed: Tensor) -> Tensor:
        positions = self.positions(scores, allowed)  # [b, h, q, k]
        terms = q @ self.embeddings.to(q.dtype)  # [b, h, q, P]
        below, above = positions.floor(), positions.ceil()
        share = positions - below
        return scores + share * terms.gather(-1, above.long()) + (1 - share) * terms.gather(-1, below.long())

    def positions(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Contextual positions [b, h, q, k], at most P - 1: the gates of the allowed keys from j on, summed from the query back."""
        gates = scores.sigmoid().masked_fill(~allowed, 0.0)
        return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.embeddings.shape[1] - 1)

    def parameter_statistics(self) -> dict[str, float]:
        return {"embeddings_norm": self.embeddings.detach().float().norm().item()}
