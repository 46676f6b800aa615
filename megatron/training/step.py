"""One optimiser step: micro-batches forward and backward, one agreement among the processes, then the update or none on any of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatron.config import Config
from megatron.data.documents import document_numbers, loss_mask, restarted_positions
from megatron.parallel.distributed import Processes
from megatron.positional.sampling import position_sampling


class NonFiniteError(Exception):
    """The loss or the gradient is infinite or NaN: no process took the step."""


@dataclass(frozen=True)
class StepResult:
    """What a step tells the log. `loss` is the mean over the whole global batch, in nats a token."""

    loss: float
    grad_norm: float | None
    loss_scale: float
    stop_requested: bool


@dataclass(frozen=True)
class Batch:
    """A micro-batch, ready for the model."""

    tokens: Tensor  # [b, n]
    labels: Tensor  # [b, n]
    loss_mask: Tensor | None  # [b, n], 1 where to train, 0 where not
    position_ids: Tensor | None  # [b, n]
    document_ids: Tensor | None  # [b, n]


def prepare_batch(windows: Tensor, config: Config, eod: int | None, device: torch.device, step: int, index: int) -> Batch:
    """Windows [b, n + 1] of micro-batch `index` (over all processes) of a step -> inputs, labels, and whatever the keys ask for."""
    windows = windows.to(device, non_blocking=True)
    tokens, labels = windows[:, :-1], windows[:, 1:]
    data = config.data
    return Batch(
        tokens=tokens,
        labels=labels,
        loss_mask=loss_mask(tokens, eod) if data.eod_mask_loss else None,
        position_ids=choose_positions(tokens, config, eod, step, index),
        document_ids=document_numbers(tokens, eod) if data.reset_attention_mask else None,
    )


def choose_positions(tokens: Tensor, config: Config, eod: int | None, step: int, index: int) -> Tensor | None:
    """Positions of tokens [b, n], micro-batch `index` (over all processes) of a step: int64 [b, n], or None for 0, 1, 2, ...

    Drawn ones are a function of (seed, step, place in the global batch), so that layouts agree. A document that starts anew takes its
    positions from the beginning of those drawn.
    """
    restarted = restarted_positions(tokens, eod) if config.data.reset_position_ids else None
    sampling = position_sampling(config.positional, config.training.seed)
    if sampling is None:
        return restarted
    b, n = tokens.shape
    drawn = sampling.draw_batch(n, [f"step {step}, sequence {index * b + row}" for row in range(b)]).to(tokens.device)
    return drawn if restarted is None else drawn.gather(1, restarted)


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Seed of dropout in micro-batch `index` (over all processes) of a step: no random state needs saving, and layouts agree."""
    return int(np.random.SeedSequence([seed, step, index]).generate_state(1, np.uint64)[0] >> 1)


def train_step(
    engine: Any,
    micro_batches: Iterator[Tensor],
    config: Config,
    eod: int | None,
    processes: Processes,
    step: int,
    learning_rate: float,
    stop_requested: bool,
) -> StepResult:
    """Take step `step` (the first is 1) with the next accumulation's micro-batches [b, n + 1].

    Raises NonFiniteError on every process, before anything is updated, when the loss or the gradient is not finite.
    """
    accumulation = engine.gradient_accumulation_steps()
    total = 0.0
    for index in range(accumulation):
        overall = index * processes.world_size + processes.rank  # this micro-batch, counted over all processes
        batch = prepare_batch(next(micro_batches), config, eod, processes.device, step, overall)
        torch.manual_seed(micro_batch_seed(config.training.seed, step, overall))
        loss = micro_batch_loss(engine, batch)
        engine.backward(loss)
        total = total + loss.detach().double()  # stays on the device: no wait until the agreement below
        if index < accumulation - 1:
            engine.step()  # counts the micro-batch; updates nothing yet
    mean, stop = agree(total / accumulation, stop_requested, processes)
    if not math.isfinite(mean):
        raise NonFiniteError(f"step {step}: the loss is {mean}")
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    norm = unsharded_gradient_norm(engine, config)
    try:
        engine.step()
    except FloatingPointError:
        raise NonFiniteError(f"step {step}: the gradient is not finite (the loss is {mean:.6g})") from None
    if config.precision.dtype != "fp16" and not engine.was_step_applied():
        raise NonFiniteError(f"step {step}: the gradient is not finite (the loss is {mean:.6g})")
    norm = engine.get_global_grad_norm() if norm is None else norm
    scale = engine.optimizer.cur_scale if config.precision.dtype == "fp16" else 1.0
    return StepResult(mean, None if norm is None else float(norm), float(scale), stop)


def unsharded_gradient_norm(engine: Any, config: Config) -> Tensor | None:
    """Norm of the whole gradient before clipping, where DeepSpeed does not keep it: a bare float32 optimiser without ZeRO."""
    if config.precision.dtype != "fp32" or config.optimizer.zero_optimization.stage > 0:
        return None
    return torch.nn.utils.get_total_norm([p.grad for p in engine.module.parameters() if p.grad is not None])


def micro_batch_loss(engine: Any, batch: Batch) -> Tensor:
    """Mean loss of the micro-batch's tokens, leaving out those that the mask does not train on."""
    losses = engine(batch.tokens, labels=batch.labels, position_ids=batch.position_ids, document_ids=batch.document_ids)  # [b, n]
    if batch.loss_mask is None:
        return losses.mean()
    return (losses * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1)


def agree(loss: Tensor, stop_requested: bool, processes: Processes) -> tuple[float, bool]:
    """Mean loss over the processes, and whether any of them was asked to stop: one small all-reduce."""
    packed = torch.stack([loss / processes.world_size, torch.tensor(float(stop_requested), dtype=torch.float64, device=loss.device)])
    mean, stop = processes.sum(packed).tolist()
    return mean, stop > 0
