"""The optimiser: which parameters decay, and whose implementation of Adam takes the step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from megatron.config import ConfigError
from megatron.config.optimizer import OptimizerConfig


def parameter_groups(model: nn.Module, config: OptimizerConfig, positional: set[str]) -> list[dict[str, Any]]:
    """Two groups, with and without weight decay: matrices decay; biases, norms and (unless asked) `positional` parameters do not."""
    decay = config.optimizer.params.weight_decay
    decay = config.weight_decay if decay is None else decay
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        shape = getattr(parameter, "ds_shape", parameter.shape)  # ZeRO-3 leaves empty placeholders with their true shape in ds_shape
        decays = config.weight_decay_positional if name in positional else len(shape) >= 2
        (decayed if decays else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(groups: Iterable[dict[str, Any]], config: OptimizerConfig, device: torch.device) -> Optimizer:
    """Adam / AdamW (decoupled decay both, as GPT-NeoX's Adam) or SGD.

    Raises ConfigError where `optimizer.implementation` names a package that is not installed.
    """
    block, params = config.optimizer, config.optimizer.params
    if block.type == "SGD":
        return torch.optim.SGD(groups, lr=params.lr, momentum=params.momentum)
    adam = {"lr": params.lr, "betas": tuple(params.betas), "eps": params.eps}
    if config.zero_optimization.offload_optimizer.device == "cpu" or (block.implementation == "deepspeed" and device.type == "cpu"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **adam)
    if block.implementation == "deepspeed":
        from deepspeed.ops.adam import FusedAdam

        return FusedAdam(groups, adam_w_mode=True, **adam)
    if block.implementation == "apex":
        try:
            from apex.optimizers import FusedAdam
        except ImportError:
            raise ConfigError("optimizer.implementation: apex is not installed; install it or use `auto`.") from None
        return FusedAdam(groups, adam_w_mode=True, **adam)
    return torch.optim.AdamW(groups, fused=True, **adam)


def refuse_non_finite(optimizer: Optimizer, agree: Callable[[bool], bool]) -> None:
    """No step is taken on an infinite or NaN gradient: raises FloatingPointError on every rank.

    `agree` turns one rank's finding into all ranks' (a logical or over the processes).
    """

    def check(stepped: Optimizer, _args: Any, _kwargs: Any) -> None:
        gradients = [p.grad for group in stepped.param_groups for p in group["params"] if p.grad is not None]
        finite = all(bool(torch.isfinite(norm)) for norm in torch._foreach_norm(gradients)) if gradients else True
        if agree(not finite):
            raise FloatingPointError("gradient")

    optimizer.register_step_pre_hook(check)
