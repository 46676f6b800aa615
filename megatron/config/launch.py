"""How many processes run where."""

from typing import Literal

from megatron.config.base import Group, key


class LaunchConfig(Group):
    """Read by `deepy.py`; other launchers (torchrun, deepspeed, srun) decide for themselves."""

    num_gpus: int | None = key(
        None,
        "Processes on each machine, one GPU each, or so many CPU processes where there is no GPU; default: all GPUs, 1 without.",
        ge=1,
        le=10**6,
    )
    master_addr: str = key("127.0.0.1", "Address of the first process.")
    master_port: int | None = key(None, "Port of the first process; default: a free one.", ge=1, le=65535)
    device: Literal["auto", "cpu", "cuda"] = key("auto", "auto takes a GPU where there is one.")
    cpu_threads: int | None = key(None, "CPU threads of each process; default: the machine's cores over its processes.", ge=1, le=10**6)
