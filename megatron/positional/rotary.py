"""Queries and keys rotated by an angle proportional to their position (RoPE; Su et al. 2021), pairing component m with m + n/2."""

import torch
from torch import Tensor

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding
from megatron.positional.rotary_scaling import STRATEGIES


class Rotary(PositionalEncoding):
    """The first n = int(head_dim * rotary_pct) components rotate, the others pass. No parameters, any length.

    `rotary_scaling` slows the angles down. With `dynamic` and `longrope` by how long the sequence is: its last position + 1, for each batch
    member; where positions restart in each document, that is the length of the longest document of the sequence. What earlier tokens have
    become in deeper layers is not computed anew when a cached sequence outgrows the original length.
    """

    acts_on = frozenset({"rotate"})
    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, head_dim: int, seq_length: int, **sizes: int):
        super().__init__(config, head_dim=head_dim, seq_length=seq_length, **sizes)
        self.rotating = int(head_dim * config.rotary_pct)
        if self.rotating < 2 or self.rotating % 2:
            raise ConfigError(
                f"`pos_emb: {config.pos_emb}` rotates pairs of components, but `rotary_pct: {config.rotary_pct:g}` of a head of {head_dim} "
                f"dimensions is {self.rotating}: choose `rotary_pct` (or heads and hidden_size) so that the product is even and at least 2."
            )
        scaling, base = config.rotary_scaling, config.rotary_emb_base
        for name, problem in scaling.problems(self.rotating, base):
            raise ConfigError(f"`{name}`: {problem}")
        self.scaling = STRATEGIES[scaling.type](scaling, base, self.rotating, scaling.original_length or seq_length)
        self.rotates_by_length = self.scaling.by_length

    def rotate(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        high = torch.promote_types(q.dtype, torch.float32)
        frequencies = self.scaling.inverse_frequencies((key_positions.amax(dim=-1) + 1).to(high))  # [n/2] or [b, n/2]
        q_size, k_size = self.magnitudes(query_positions, key_positions, q.dtype)
        return (
            rotated(q, angles(query_positions, frequencies), q_size),
            rotated(k, angles(key_positions, frequencies), k_size),
        )

    def magnitudes(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> tuple[float | Tensor, float | Tensor]:
        """What rotated queries and rotated keys of type `dtype` are multiplied by: numbers, or a factor a pair [..., q or k, n/2]."""
        return self.scaling.attention_factor, self.scaling.attention_factor


def angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Positions [q] or [b, q], radians a position [n/2] or [b, n/2] -> [..., q, n/2], in the frequencies' type."""
    return positions.to(frequencies.dtype)[..., None] * frequencies[..., None, :]


def rotated(x: Tensor, angles: Tensor, magnitude: float | Tensor) -> Tensor:
    """x [b, h, q, d], angles [..., q, n/2], magnitude a number or [..., q, n/2] -> x rotated, in x's type, computed in the angles'."""
    cosine, sine = ((part * magnitude).unsqueeze(-3) for part in (angles.cos(), angles.sin()))  # [..., 1, q, n/2]
    rotating = 2 * angles.shape[-1]
    first, second = x[..., :rotating].to(angles.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
    return torch.cat([turned, x[..., rotating:]], dim=-1)
