"""Queries and keys rotated by an angle proportional to their position (RoPE; Su et al. 2021), pairing component m with m + n/2."""

import torch
from torch import Tensor

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding


class Rotary(PositionalEncoding):
    """The first n = int(head_dim * rotary_pct) components rotate, the others pass. No parameters, any length."""

    acts_on = frozenset({"rotate"})
    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, head_dim: int, **sizes: int):
        super().__init__(config, head_dim=head_dim, **sizes)
        self.base = config.rotary_emb_base
        self.rotating = int(head_dim * config.rotary_pct)
        if self.rotating < 2 or self.rotating % 2:
            raise ConfigError(
                f"`pos_emb: {config.pos_emb}` rotates pairs of components, but `rotary_pct: {config.rotary_pct:g}` of a head of {head_dim} "
                f"dimensions is {self.rotating}: choose `rotary_pct` (or heads and hidden_size) so that the product is even and at least 2."
            )

    def rotate(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotated(q, query_positions), self._rotated(k, key_positions)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [b, h, n, d], positions [n] or [b, n] -> x rotated, in x's type; angles and products in float32 at least."""
        high = torch.promote_types(x.dtype, torch.float32)
        exponents = torch.arange(0, self.rotating, 2, device=x.device).to(high) / self.rotating  # [rotating / 2]
        angles = (positions.to(high)[..., None] * self.base**-exponents).unsqueeze(-3)  # [..., 1, n, rotating / 2]
        cosine, sine = angles.cos(), angles.sin()
        first, second = x[..., : self.rotating].to(high).chunk(2, dim=-1)
        rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
        return torch.cat([rotated, x[..., self.rotating :]], dim=-1)
