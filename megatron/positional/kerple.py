"""Learned kernels of the distance, a few positive numbers per head (KERPLE; Chi et al. 2022, section 4 and appendix A).

Parameters are held free and used inside their bounds; the gradient is taken at the bounded value and goes through unchanged, so that a head
on a bound can come back. The stored values are never written in forward.
"""

import math

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig
from megatron.positional.base import DistanceEncoding
from megatron.positional.figures import over_heads
from megatron.positional.initialise import fill_uniform

SMALLEST = 0.01  # lower bound of every parameter
LARGEST_EXPONENT = 2.0  # upper bound of an exponent of the distance: the kernels are conditionally positive definite up to here


class Kerple(DistanceEncoding):
    """What the family shares: a key says whether one set of parameters serves all layers."""

    def __init__(self, config: PositionalConfig, **sizes: int):
        super().__init__(config, **sizes)
        self.shares_parameters = config.kerple_shared

    def parameter_statistics(self) -> dict[str, float]:
        """Smallest, mean and largest of each parameter over the heads, as stored (a value below 0.01 counts as 0.01)."""
        figures = {}
        for name, parameter in self.named_parameters():
            if not name.startswith("score_map."):
                figures |= over_heads(name.replace("_kernel.", "_"), parameter.detach())
        return figures


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


class KerpleLog3(KerpleLog):
    """-p ln(1 + a t^r): the three-parameter logarithmic kernel. r starts at 1, where it is KerpleLog, and is used within [0.01, 2]."""

    def __init__(self, config: PositionalConfig, *, heads: int, **sizes: int):
        super().__init__(config, heads=heads, **sizes)
        self.r = nn.Parameter(torch.ones(heads))

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        super().initialise_parameters(generator, embedding_std)
        self.r.fill_(1.0)

    def distance_bias(self, distances: Tensor) -> Tensor:
        a, p = (bounded(parameter, self.precision)[:, None] for parameter in (self.a, self.p))  # [h, 1]
        r = bounded(self.r, self.precision, LARGEST_EXPONENT)[:, None]
        return -p * torch.log1p(a * distances.to(self.precision) ** r)


class PowerKernel(nn.Module):
    """a t^p with 0^p = 0: a ~ U[0, 1), used as at least 0.01; p ~ U[0, 2), used within [0.01, 2]."""

    def __init__(self, heads: int):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(heads))
        self.p = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw a, then p."""
        fill_uniform(self.a, 0.0, 1.0, generator)
        fill_uniform(self.p, 0.0, 2.0, generator)

    def forward(self, distances: Tensor) -> Tensor:
        """Distances [n], in the type to compute in -> [h, n]."""
        return bounded(self.a, distances.dtype)[:, None] * distances ** bounded(self.p, distances.dtype, LARGEST_EXPONENT)[:, None]


class KerplePower(Kerple):
    """The bias -a t^p: the power kernel."""

    def __init__(self, config: PositionalConfig, *, heads: int, **sizes: int):
        super().__init__(config, heads=heads, **sizes)
        if "bias" in self.acts_on:
            self.bias_kernel = PowerKernel(heads)
        if "weight" in self.acts_on:
            self.weight_kernel = PowerKernel(heads)

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        for kernel in self.children():
            if isinstance(kernel, PowerKernel):
                kernel.initialise(generator)

    def distance_bias(self, distances: Tensor) -> Tensor:
        return -self.bias_kernel(distances.to(self.precision))

    def distance_weight(self, distances: Tensor) -> Tensor:
        return torch.exp(-self.weight_kernel(distances.to(self.precision)))


class KerplePowerWeight(KerplePower):
    """The weight exp(-a t^p) on the scores: the Gaussian-like kernels."""

    acts_on = frozenset({"weight"})


class KerplePowerBoth(KerplePower):
    """Weight and bias, each with its own a and p."""

    acts_on = frozenset({"weight", "bias"})


def bounded(parameter: Tensor, dtype: torch.dtype, largest: float = math.inf) -> Tensor:
    """The parameter in `dtype`, moved into [0.01, largest]; its gradient is not stopped outside."""
    free = parameter.to(dtype)
    return free.detach().clamp(SMALLEST, largest) + (free - free.detach())  # the bracket is zero, with gradient one
