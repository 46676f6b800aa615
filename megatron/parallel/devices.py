"""Which accelerators this machine has, found without importing torch."""

import os
import re
from pathlib import Path


def visible_gpus() -> int:
    """Number of CUDA devices that processes started here will see: CUDA_VISIBLE_DEVICES, else the NVIDIA device files."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if chosen is None:
        return present
    listed = [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    return min(len(listed), present)


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
