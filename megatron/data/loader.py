"""Micro-batches for one data-parallel rank, read ahead by worker processes, from any step on."""

import os
import signal
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from megatron.errors import UserError


class Samples(Protocol):
    """`samples[k]` -> int64 [seq_length + 1] for every k >= 0."""

    def __getitem__(self, number: int): ...


def training_batches(
    data_train: Samples,
    *,
    start_step: int,
    steps: int,
    global_batch: int,
    micro_batch: int,
    accumulation: int,
    data_parallel_rank: int,
    data_parallel_size: int,
    num_workers: int,
) -> Iterator[Tensor]:
    """Yields `accumulation` tensors int64 [micro_batch, seq_length + 1] for each of the steps start_step .. start_step + steps - 1.

    Step s trains on samples s * global_batch .. (s + 1) * global_batch - 1, however many ranks share them; micro-batch m of rank r has
    those from (m * data_parallel_size + r) * micro_batch of the step on. Errors in worker processes are raised here as they are.
    """
    if global_batch != micro_batch * accumulation * data_parallel_size:
        raise ValueError(f"global batch {global_batch} != {micro_batch} x {accumulation} accumulated x {data_parallel_size} ranks")
    first_samples = _FirstSamples(start_step, steps, global_batch, micro_batch, accumulation, data_parallel_rank, data_parallel_size)
    if not steps:
        return
    data_train[next(iter(first_samples))]  # before there are workers: what is wrong is said once, and they share this epoch's orders
    loader = DataLoader(
        _MicroBatches(data_train, micro_batch),
        sampler=first_samples,
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=_start_worker,
        pin_memory=torch.cuda.is_available(),
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch


class _MicroBatches(Dataset):
    """Micro-batches by the number of their first sample. A UserError is returned, because a worker's exceptions arrive as stack traces."""

    def __init__(self, samples: Samples, micro_batch: int):
        self.samples, self.micro_batch = samples, micro_batch

    def __getitem__(self, first: int) -> Tensor | UserError:
        try:
            rows = [torch.from_numpy(self.samples[first + i]) for i in range(self.micro_batch)]
            return torch.stack(rows)  # [micro_batch, seq_length + 1]
        except UserError as error:
            return error


class _FirstSamples:
    """The numbers of the first samples of a rank's micro-batches, step after step."""

    def __init__(self, start_step: int, steps: int, global_batch: int, micro_batch: int, accumulation: int, rank: int, ranks: int):
        self.steps = range(start_step, start_step + steps)
        self.global_batch, self.micro_batch, self.accumulation, self.rank, self.ranks = global_batch, micro_batch, accumulation, rank, ranks

    def __len__(self) -> int:
        return len(self.steps) * self.accumulation

    def __iter__(self) -> Iterator[int]:
        for step in self.steps:
            for micro in range(self.accumulation):
                yield step * self.global_batch + (micro * self.ranks + self.rank) * self.micro_batch


def _start_worker(number: int) -> None:
    """A worker leaves Ctrl-C to the training process and gives way to it (DataLoader itself limits it to one thread)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the training process's handler, which would only set a flag here
    os.nice(5)
