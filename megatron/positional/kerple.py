"""Learned kernels of the distance, a few positive numbers per head (KERPLE; Chi et al. 2022, section 4 and appendix A).

Parameters are held free and used inside their bounds; the gradient is taken at the bounded value and goes through unchanged, so that a head
on a bound can come back. The stored values are never written in forward.
"""

import math

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig
from megatron.positional.base import DistanceEncoding
from megatron.positional.initialise import fill_uniform

SMALLEST = 0.01  # lower bound of every parameter
LARGEST_EXPONENT = 2.0  # upper bound of an exponent of the distance: the kernels are conditionally positive definite up to here


class Kerple(DistanceEncoding):
    """What the family shares: a key says whether one set of parameters serves all layers."""

    def __init__(self, config: PositionalConfig, **sizes: int):
        super().__init__(config, **sizes)
        self.shares_parameters = config.kerple_shared


class KerpleLog(Kerple):
    """-p ln(1 + a t), a ~ U[0, 1), p ~ U[0, 2), both used as at least 0.01."""

    def __init__(self, config: PositionalConfig, *, heads: int, **sizes: int):
        super().__init__(config, heads=heads, **sizes)
        self.a = nn.Parameter(torch.zeros(heads))
        self.p = nn.Parameter(torch.zeros(heads))

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        fill_uniform(self.a, 0.0, 1.0, generator)
        fill_uniform(self.p, 0.0, 2.0, generator)

    def distance_bias(self, distances: Tensor) -> Tensor:
        a, p = (bounded(parameter, self.precision)[:, None] for parameter in (self.a, self.p))  # [h, 1]
        return -p * torch.log1p(a * distances.to(self.precision))


def bounded(parameter: Tensor, dtype: torch.dtype, largest: float = math.inf) -> Tensor:
    """The parameter in `dtype`, moved into [0.01, largest]; its gradient is not stopped outside."""
    free = parameter.to(dtype)
    return free.detach().clamp(SMALLEST, largest) + (free - free.detach())  # the bracket is zero, with gradient one
