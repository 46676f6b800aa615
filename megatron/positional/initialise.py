"""Random fills that are the same on every device and in every type: drawn in float32 from a CPU generator, then copied."""

import math

import torch
from torch import Tensor


def fill_uniform(parameter: Tensor, low: float, high: float, generator: torch.Generator) -> None:
    """Fill with U[low, high)."""
    parameter.copy_(torch.empty(parameter.shape).uniform_(low, high, generator=generator))


def fill_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with N(0, std^2)."""
    parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def fill_as_linear(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    """Fill weight [out, in, ...] and bias [out] as torch's own layers start: U(-1, 1) / sqrt(fan_in), fan_in = in x ..."""
    bound = 1 / math.sqrt(weight[0].numel())
    for parameter in (weight, bias):
        if parameter is not None:
            fill_uniform(parameter, -bound, bound, generator)
