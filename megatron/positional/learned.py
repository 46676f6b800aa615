"""A learned table of absolute positions, added to the word embeddings (Gehring et al. 2017)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from megatron.config.positional import PositionalConfig
from megatron.errors import UserError
from megatron.positional.base import PositionalEncoding
from megatron.positional.initialise import fill_normal


class Learned(PositionalEncoding):
    """One row per position; a position without a row is an error, never a wrapped or clamped look-up."""

    acts_on = frozenset({"embed"})
    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, hidden_size: int, max_position_embeddings: int, **sizes: int):
        super().__init__(config, hidden_size=hidden_size, max_position_embeddings=max_position_embeddings, **sizes)
        self.rows = max_position_embeddings
        self.table = nn.Parameter(torch.zeros(max_position_embeddings, hidden_size))

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        fill_normal(self.table, embedding_std, generator)

    def check_length(self, length: int, dtype: torch.dtype | None = None) -> None:
        if length > self.rows:
            raise UserError(
                f"A sequence of {length} tokens does not fit the learned position table of {self.rows} rows (`pos_emb: learned`): "
                f"shorten the sequence, train with a larger `max_position_embeddings`, or use a `pos_emb` that extends to any length."
            )

    def embed(self, positions: Tensor) -> Tensor:
        """[q] or [b, q] -> [..., q, hidden]. Raises UserError for a position beyond the table."""
        self.check_length(int(positions.max()) + 1)
        return embedding(positions.clamp(min=0), self.table)
