"""Initial values: each a function of (seed, parameter name), never of the order of construction or the layout over processes."""

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from megatron.config.model import Initialisation, ModelConfig
from megatron.positional.base import PositionalEncoding

Gather = Callable[[Sequence[nn.Parameter]], AbstractContextManager]

INTO_THE_RESIDUAL_STREAM = ("attention.output.weight", "mlp.down.weight")


def initialise(model: nn.Module, config: ModelConfig, seed: int, gather: Gather = lambda parameters: nullcontext()) -> None:
    """Fill all parameters of a GPT: matrices normal, biases zero, norms one, positional encodings their own way.

    Values are drawn in float32 on the CPU. `gather(parameters)` is a context in which parameters that ZeRO-3 shards are whole.
    """
    embedding_std = standard_deviation(config.init_method, config)
    for name, module in model.named_modules():
        if isinstance(module, PositionalEncoding):
            with gather(list(module.parameters())), torch.no_grad():
                module.initialise(named_generator(seed, name), embedding_std)
    positional = model.positional_parameter_names()
    for name, parameter in model.named_parameters():
        if name not in positional:
            with gather([parameter]), torch.no_grad():
                parameter.copy_(initial_value(name, parameter.shape, config, seed))


def initial_value(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> Tensor:
    """float32, on the CPU."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    method = config.output_layer_init_method if name.endswith(INTO_THE_RESIDUAL_STREAM) else config.init_method
    return torch.empty(shape).normal_(0.0, standard_deviation(method, config), generator=named_generator(seed, name))


def standard_deviation(method: Initialisation, config: ModelConfig) -> float:
    """Of the normal distribution that a method draws from.

    small_init: Nguyen and Salazar 2019; wang_init: Wang and Komatsuzaki 2021 (GPT-J); scaled_normal: Radford et al. 2019 (GPT-2).
    """
    return {
        "normal": config.init_method_std,
        "scaled_normal": config.init_method_std / math.sqrt(2 * config.num_layers),
        "small_init": math.sqrt(2 / (5 * config.hidden_size)),
        "wang_init": 2 / (config.num_layers * math.sqrt(config.hidden_size)),
    }[method]


def named_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for each name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
