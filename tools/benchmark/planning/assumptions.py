"""What a plan takes for granted about the machine: printed with every result, and each an option of the tool."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from megatron.monitor.devices import Dtype, peak_tflops
from tools.benchmark.configuration import at_least

GIBI, GIGA, TERA = 2**30, 1e9, 1e12


GPU = "A100"


def _number(default: float, words: str, lowest: float = 1e-6) -> Any:
    return field(default=default, metadata={"words": words, "lowest": lowest})


@dataclass(frozen=True)
class Assumptions:
    """An A100-80GB machine: NVLink inside a node, 200 Gbit/s a GPU between nodes."""

    memory: float = _number(79, "GiB of a GPU's memory, as torch sees it")
    reserve: float = _number(4, "GiB of it for CUDA, NCCL, fragmentation and short-lived tensors", 0)
    tflops: float = _number(312, "peak TFLOP/s of a GPU in the run's number format; 19.5 for float32")
    efficiency: float = _number(0.4, "share of the peak that the model's matrix products reach")
    map_efficiency: float = _number(0.02, "the same for a DAPE map's products")
    nvlink: float = _number(300, "GB/s that a GPU sends to the others of its node")
    network: float = _number(25, "GB/s that a GPU sends to other nodes")
    gpus_per_node: float = _number(8, "GPUs of a node", 1)

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)

    def flops(self, efficiency: float) -> float:
        """FLOP/s of a GPU at a share of its peak."""
        return self.tflops * TERA * efficiency

    def bytes_per_second(self, gpus: int) -> float:
        """How fast a GPU sends inside a group that is spread over as few nodes as `gpus` GPUs fill."""
        return (self.nvlink if gpus <= self.gpus_per_node else self.network) * GIGA


def add_assumptions(parser: ArgumentParser) -> None:
    """An option for each."""
    group = parser.add_argument_group("assumptions")
    for each in fields(Assumptions):
        group.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=at_least(each.metadata["lowest"], float),
            metavar="NUMBER",
            help=f"{each.metadata['words']} (default: {each.default:g})",
        )


def read_assumptions(options: Namespace, dtype: Dtype) -> Assumptions:
    """From the options, for a run in `dtype`."""
    given = {each.name: value for each in fields(Assumptions) if (value := getattr(options, each.name)) is not None}
    return Assumptions(**{"tflops": peak_tflops(GPU, dtype), **given})
