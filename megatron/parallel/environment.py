"""Where this process stands among the run's processes, as told by whichever launcher started it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from megatron.errors import UserError


@dataclass(frozen=True)
class Place:
    """Rank among all processes and among those of this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False  # by a launcher, not by a plain `python train.py`


# launcher: (rank, world size, local rank, local size); the first one whose variables are all set is believed
VARIABLES = {
    "torchrun, deepspeed, deepy.py": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Read the launcher's variables. A batch script's own SLURM variables (no step) do not count: it is one plain process."""
    for launcher, names in VARIABLES.items():
        if any(name not in environment for name in names[:3]):
            continue
        try:
            rank, world, local = (int(environment[name]) for name in names[:3])
            local_size = int(environment.get(names[3], str(world)).split("(")[0].split(",")[0])
        except ValueError as error:
            raise UserError(f"environment variables of {launcher} are not numbers ({', '.join(names[:3])}): {error}") from None
        if not 0 <= rank < world:
            raise UserError(f"{names[0]}={rank} does not fit {names[1]}={world}: variables left over from another launcher? Unset them.")
        return Place(rank, world, local, local_size, launched=True)
    return Place()


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rendezvous(place: Place, port: int | None = None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables torch.distributed needs, filled in where the launcher (srun, mpirun, none) did not set them.

    `port` is the configuration's. A plain process alone takes a free one, so that several runs fit on a machine; the steps of a SLURM job
    find each other at a port that follows from the job's number.
    """
    if not place.launched:
        environment, port = {}, port or free_port()
    address = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"
    job = int(environment.get("SLURM_JOB_ID", "0"))
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_SIZE": str(place.local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port or 20_000 + job % 20_000),
    }
