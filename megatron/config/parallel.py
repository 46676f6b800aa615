"""How the model and the batch are laid out over processes."""

from typing import Literal

from megatron.config.base import Group, key


class ParallelConfig(Group):
    """Data-parallel size is the number of processes over the product of the other two."""

    pipe_parallel_size: int = key(0, "Pipeline stages; 0 and 1 mean no pipeline.", ge=0, le=10**6)
    model_parallel_size: int = key(1, "Tensor-parallel processes.", ge=1, le=10**6)
    distributed_backend: Literal["nccl", "gloo"] | None = key(
        None, "Default: nccl with GPUs, gloo without. nccl on a machine without a GPU becomes gloo, and the log says so."
    )
