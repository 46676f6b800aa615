"""A fixed bias that falls linearly with the distance, with a slope per head (ALiBi; Press et al. 2022, section 3)."""

import torch
from torch import Tensor

from megatron.positional.base import DistanceEncoding


class Alibi(DistanceEncoding):
    """-slope_h * t. No parameters."""

    shares_parameters = True

    def distance_bias(self, distances: Tensor) -> Tensor:
        return -slopes(self.heads, self.precision, distances.device)[:, None] * distances.to(self.precision)


def slopes(heads: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """The geometric sequence 2^(-8 (u + 1) / h) [h]; other numbers are filled up with every second slope of twice as many."""
    power = 2 ** (heads.bit_length() - 1)  # the largest power of two that is at most `heads`
    sequence = geometric(power, dtype, device)
    if power == heads:
        return sequence
    return torch.cat([sequence, geometric(2 * power, dtype, device)[::2][: heads - power]])


def geometric(heads: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """2^(-8 (u + 1) / h) for u = 0 .. h-1, h a power of two."""
    return torch.exp2(torch.arange(1, heads + 1, device=device).to(dtype) * (-8 / heads))
