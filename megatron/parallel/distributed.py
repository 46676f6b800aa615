"""The run's processes: who they are, which device each owns, and the few collectives that the run's own glue needs."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron.config import Config
from megatron.errors import UserError
from megatron.parallel.devices import usable_cores
from megatron.parallel.environment import find_place, rendezvous


@dataclass(frozen=True)
class Processes:
    """The data-parallel processes of a run (tensor and pipeline parallelism have one process each)."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over the processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value, on every rank."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def on_first(self, function: Callable[[], Any]) -> Any:
        """Call `function` on rank 0 only and return its value on every rank; a UserError there is raised on every rank."""
        outcome: tuple[Any, UserError | None] = (None, None)
        if self.is_first:
            try:
                outcome = (function(), None)
            except UserError as error:
                outcome = (None, error)
        value, error = self.broadcast(outcome)
        if error is not None:
            raise error
        return value

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable value, by rank, on every rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values


def start_processes(config: Config) -> Processes:
    """Join the process group through DeepSpeed, on NCCL with GPUs and gloo without. Call once, before a model is built."""
    place = find_place()
    cuda = config.launch.device != "cpu" and torch.cuda.is_available()
    os.environ.update(rendezvous(place, config.launch.master_port))
    os.environ["DS_ACCELERATOR"] = "cuda" if cuda else "cpu"  # DeepSpeed asks the environment when it is first imported
    torch.set_num_threads(config.launch.cpu_threads or max(1, usable_cores() // place.local_size))
    device = torch.device("cuda", place.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    import deepspeed

    quiet(deepspeed)
    backend = "nccl" if cuda and config.parallel.distributed_backend != "gloo" else "gloo"
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False, timeout=timedelta(minutes=30))
    return Processes(place.rank, place.world_size, device)


def quiet(deepspeed: Any) -> None:
    """Warnings only; and no shared-memory op, which DeepSpeed would compile with g++ at the first start on a CPU, for little over gloo."""
    deepspeed.utils.logger.setLevel("WARNING")
    # warnings about DeepSpeed's own calls
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
