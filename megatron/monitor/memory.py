"""How much memory a process may still take."""

from pathlib import Path

import torch

CONTROL_GROUPS = (  # limit, used, and statistics of the container's memory: version 2, version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
RECLAIMABLE = ("inactive_file", "total_inactive_file")  # cached files that make room when memory is needed


def free_bytes(device: torch.device, local_processes: int) -> int | None:
    """This process's share of what is free on its device; None where the machine does not tell.

    On a CPU, the `local_processes` of this machine share what the system, and the container's limit, leave.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    rooms = [room for room in (_free_of_machine(Path("/proc/meminfo")), _free_of_container(Path("/sys/fs/cgroup"))) if room is not None]
    return min(rooms) // local_processes if rooms else None


def _free_of_machine(path: Path) -> int | None:
    try:
        words = dict(line.split(":", 1) for line in path.read_text().splitlines())
        return int(words["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None


def _free_of_container(folder: Path) -> int | None:
    for limit, used, statistics in CONTROL_GROUPS:
        try:
            cached = dict(line.split() for line in (folder / statistics).read_text().splitlines())
            reclaimable = max(int(cached.get(name, 0)) for name in RECLAIMABLE)
            return max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + reclaimable)
        except (OSError, ValueError):  # not this version, or "max": no limit
            continue
    return None
