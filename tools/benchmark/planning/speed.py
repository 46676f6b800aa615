"""Seconds of a training step: the model's products, the map's, and what is sent.

Products: three times the forward pass, four times that of blocks that are recomputed, evenly over the GPUs. Not counted: reading data,
the optimiser's update, evaluations, checkpoints. Nothing is hidden behind anything else, but with `overlap_comm` what ZeRO sends during the
backward pass: gradients, and under stage 3 weights.
"""

from tools.benchmark.planning.assumptions import Assumptions
from tools.benchmark.planning.shape import Layout, Shape

BACKWARD = 2 / 3  # its share of the products' time
SECONDS_A_DAY = 86400


def seconds(shape: Shape, layout: Layout, sent: dict[str, float], machine: Assumptions, *, overlap: bool) -> dict[str, float]:
    """By kind, and as `step` their sum; `sent` is `communication`'s."""
    tokens = layout.batch * shape.length / layout.gpus
    products, map_products = training_flops(shape)
    model = tokens * products / machine.flops(machine.efficiency)
    dape = tokens * map_products / machine.flops(machine.map_efficiency)
    in_backward = sent["gradients"] + (sent["weights"] if layout.zero_stage == 3 else 0)
    speed = machine.bytes_per_second(layout.gpus)
    after = (sent["gradients"] + sent["weights"] - in_backward) / speed
    parts = {
        "products": model,
        "dape_map": dape,
        "data_parallel": after + exposed(in_backward / speed, BACKWARD * (model + dape) if overlap else 0),
        "tensor_parallel": (sent["tensor_parallel"] + sent["dape_exchange"]) / machine.bytes_per_second(layout.tensor_parallel),
    }
    return parts | {"step": sum(parts.values())}


def training_flops(shape: Shape) -> tuple[float, float]:
    """(of the model without its map, of the map), for each token."""
    again = 1 if shape.recompute else 0
    return 3 * shape.forward_flops + again * (shape.forward_flops - shape.head_flops), (3 + again) * shape.map_flops


def exposed(communication: float, hidden_behind: float) -> float:
    """Seconds of sending that are left when so many seconds of work go on beside it."""
    return max(0.0, communication - hidden_behind)


def throughput(shape: Shape, layout: Layout, step: float, machine: Assumptions, train_iters: int) -> dict[str, float]:
    """Tokens a second of all GPUs, MFU (without recomputation, with the map), and days for the whole run."""
    tokens_per_second = layout.batch * shape.length / step
    model_flops = 3 * (shape.forward_flops + shape.map_flops)
    return {
        "tokens_per_second": tokens_per_second,
        "mfu": tokens_per_second * model_flops / (layout.gpus * machine.flops(1)),
        "days": step * train_iters / SECONDS_A_DAY,
    }
