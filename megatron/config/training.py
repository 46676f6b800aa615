"""Batch sizes, number of steps, seed, what is trained, activation checkpointing."""

from typing import Literal

from megatron.config.base import Group, key


class TrainingConfig(Group):
    """How much is trained, in which portions."""

    train_iters: int = key(..., "Optimiser steps of the run.", ge=0, le=10**12)
    train_batch_size: int | None = key(
        None, "Sequences per step over all processes; default: micro batch x accumulation x data-parallel size.", ge=1, le=10**9
    )
    train_micro_batch_size_per_gpu: int | None = key(None, "Sequences per forward pass of one process.", ge=1, le=10**9)
    gradient_accumulation_steps: int | None = key(None, "Forward passes per step (`gas` is an older name).", ge=1, le=10**9)
    seed: int = key(1234, "Everything random is a function of this and of the step.", ge=0, le=2**63 - 1)
    trainable: Literal["all", "dape", "positional"] = key(
        "all", "Train all parameters, those of the DAPE maps alone, or of the positional encoding (maps included); others stay frozen."
    )
    checkpoint_activations: bool = key(False, "Recompute activations in the backward pass instead of keeping them.")
    checkpoint_num_layers: int = key(1, "Blocks per recomputed segment.", ge=1, le=10**6)
    exit_interval: int | None = key(None, "Stop (with a checkpoint) at the first step that this divides.", ge=1, le=10**12)
    exit_duration_in_mins: float | None = key(None, "Stop (with a checkpoint) after so many minutes.", gt=0)
