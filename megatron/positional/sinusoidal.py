"""Fixed sines and cosines of the absolute position, added to the word embeddings (Vaswani et al. 2017, section 3.5)."""

import torch
from torch import Tensor

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding

BASE = 10000.0


class Sinusoidal(PositionalEncoding):
    """No parameters, any length."""

    acts_on = frozenset({"embed"})
    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, hidden_size: int, **sizes: int):
        super().__init__(config, hidden_size=hidden_size, **sizes)
        check_even(hidden_size, config.pos_emb)

    def embed(self, positions: Tensor) -> Tensor:
        """[q] or [b, q] -> [..., q, hidden] in float32 at least."""
        return sinusoid(positions, self.hidden_size, self.precision)


def sinusoid(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[...] -> [..., width]: sin(t w_m) for all m, then cos(t w_m), with w_m = 10000^(-2m / width)."""
    exponents = torch.arange(0, width, 2, device=positions.device).to(dtype) / width  # [width / 2]
    angles = positions.to(dtype)[..., None] * BASE**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def check_even(hidden_size: int, name: str) -> None:
    """Sines and cosines come in pairs. Raises ConfigError for an odd width."""
    if hidden_size % 2:
        raise ConfigError(f"`pos_emb: {name}` pairs sines with cosines and needs an even `hidden_size`, not {hidden_size}.")
