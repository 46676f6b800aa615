"""The learning rate as a function of the step: no state, so that nothing about it can be lost or restored wrongly."""

import math

from megatron.config.optimizer import OptimizerConfig


def learning_rate(config: OptimizerConfig, train_iters: int, step: int) -> float:
    """Rate of optimiser step `step` (1 is the first). `train_iters` stands in for `lr_decay_iters` where that is not given.

    Warm-up: linear from 0 over `warmup` x decay steps. Then, with x the share of the decay that is done: linear and cosine go from
    lr to min_lr; exponential is lr e^-x; inverse_sqrt is lr sqrt(warm-up / step); constant stays. Never below min_lr after the warm-up.
    """
    peak, low = config.optimizer.params.lr, config.min_lr
    decay_steps = config.lr_decay_iters or max(train_iters, 1)
    warmup_steps = config.warmup * decay_steps
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if config.lr_decay_style == "constant":
        return peak
    if config.lr_decay_style == "inverse_sqrt":
        return max(low, peak * math.sqrt(max(warmup_steps, 1) / step))
    share = min(1.0, (step - warmup_steps) / max(decay_steps - warmup_steps, 1e-9))
    if config.lr_decay_style == "linear":
        return low + (peak - low) * (1 - share)
    if config.lr_decay_style == "cosine":
        return low + (peak - low) * (1 + math.cos(math.pi * share)) / 2
    return max(low, peak * math.exp(-share))
