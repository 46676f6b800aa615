"""Peak speeds of well-known GPUs, from their makers' data sheets."""

import re
from typing import Literal

Dtype = Literal["fp32", "fp16", "bf16"]

# Dense (not sparse) TFLOP/s: words of the device's name, matrix units in fp16 with float32 sums, the same in bf16, plain float32 (no TF32).
# The first row whose words are all in the name counts.
_PEAKS: tuple[tuple[str, float, float | None, float], ...] = (
    ("gb200", 2500, 2500, 80),
    ("b200", 2250, 2250, 75),
    ("h200 nvl", 835.5, 835.5, 60),
    ("h200", 989.4, 989.4, 67),
    ("gh200", 989.4, 989.4, 67),
    ("h100 pcie", 756.5, 756.5, 51),
    ("h100 nvl", 835.5, 835.5, 60),
    ("h100", 989.4, 989.4, 67),
    ("h800 pcie", 756.5, 756.5, 51),
    ("h800", 989.4, 989.4, 67),
    ("h20", 148, 148, 44),
    ("a100", 312, 312, 19.5),
    ("a800", 312, 312, 19.5),
    ("a30", 165, 165, 10.3),
    ("a10", 125, 125, 31.2),
    ("a40", 149.7, 149.7, 37.4),
    ("l40s", 362, 362, 91.6),
    ("l40", 181, 181, 90.5),
    ("l4", 121, 121, 30.3),
    ("rtx 6000 ada", 364.2, 364.2, 91.1),
    ("rtx a6000", 154.8, 154.8, 38.7),
    ("rtx 5090", 209.5, 209.5, 104.8),
    ("rtx 4090", 165.2, 165.2, 82.6),
    ("rtx 3090 ti", 80, 80, 40),
    ("rtx 3090", 71.2, 71.2, 35.6),
    ("v100s", 130, None, 16.4),
    ("v100 pcie", 112, None, 14),
    ("v100", 125, None, 15.7),
    ("t4", 65, None, 8.1),
    ("mi300x", 1307.4, 1307.4, 163.4),
)
_SLOWER_NAMESAKES = frozenset({"laptop", "mobile", "d", "mig", "max", "q"})  # other speeds than the card of that name


def peak_tflops(device_name: str, dtype: Dtype) -> float | None:
    """Peak TFLOP/s of the GPU that torch calls `device_name`, in `dtype`; None where it is unknown (every CPU is)."""
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    if words & _SLOWER_NAMESAKES:
        return None
    for name, fp16, bf16, fp32 in _PEAKS:
        if words.issuperset(name.split()):
            return {"fp16": fp16, "bf16": bf16, "fp32": fp32}[dtype]
    return None
