"""Bytes that one GPU sends in a training step.

Collectives run as rings: a GPU of p sends n (p - 1) / p of n bytes that are gathered or reduce-scattered, and twice that of an all-reduce.
"""

from megatron.config.optimizer import ZeroConfig
from tools.benchmark.planning.shape import Layout, Shape

FIELDS = ("gradients", "weights", "tensor_parallel", "dape_exchange")


def communication(shape: Shape, layout: Layout, zero: ZeroConfig, gradient_item: int) -> dict[str, float]:
    """Bytes by kind (FIELDS); `gradient_item`: bytes of a gradient as it is sent."""
    parameters = shape.parameters(layout.tensor_parallel)
    tokens = layout.micro_batch * shape.length
    gradients = gradient_bytes(gradient_item * parameters * shape.trained_share, layout, reduce_scatter=zero.reduce_scatter)
    return {
        "gradients": gradients,
        "weights": weight_bytes(shape.item * parameters, shape.trained_share, layout),
        "tensor_parallel": layout.accumulation * tensor_parallel_bytes(shape, tokens, layout.tensor_parallel),
        "dape_exchange": layout.accumulation * exchange_bytes(shape, tokens, layout.tensor_parallel) + map_gradient_bytes(shape, layout),
    }


def gathered(size: float, ranks: int) -> float:
    """Sent by one of `ranks` GPUs that gather `size` bytes, reduce-scatter them, or exchange them all to all."""
    return size * (ranks - 1) / ranks


def gradient_bytes(size: float, layout: Layout, *, reduce_scatter: bool) -> float:
    """All-reduced without ZeRO, reduce-scattered with it; under stages 2 and 3, which keep no whole gradients, after each micro-batch."""
    once = gathered(size, layout.data_parallel) * (1 if reduce_scatter and layout.zero_stage else 2)
    return once * (layout.accumulation if layout.zero_stage >= 2 else 1)


def weight_bytes(size: float, trained_share: float, layout: Layout) -> float:
    """ZeRO 1 and 2 gather what was updated, once a step; stage 3 all weights, for each forward and each backward pass."""
    if layout.zero_stage == 3:
        return 2 * layout.accumulation * gathered(size, layout.data_parallel)
    return gathered(size * trained_share, layout.data_parallel) if layout.zero_stage else 0


def tensor_parallel_bytes(shape: Shape, tokens: int, ranks: int) -> float:
    """All-reduces of a micro-batch's hidden states (Megatron-LM; Shoeybi et al. 2019).

    Two a block forwards, two backwards, two more where it is recomputed; one behind the embedding, and one before the head backwards.
    """
    reductions = shape.layers * (6 if shape.recompute else 4) + 2
    return reductions * 2 * gathered(tokens * shape.hidden * shape.item, ranks)


def exchange_bytes(shape: Shape, tokens: int, ranks: int) -> float:
    """DAPE's map needs all heads of a pair: each GPU turns its heads' queries into a share of the rows of all heads, gathers the keys and
    values of all heads, and turns the result back. The backward pass sends as much, a recomputed forward pass once more.

    For each token: all to all, queries and result, of which a GPU holds 1 / p; gathered, keys and values of all heads.
    """
    if not shape.mapped or ranks == 1:
        return 0
    forward = gathered(2 * shape.attended * tokens * shape.item / ranks + 2 * shape.keys * tokens * shape.item, ranks)
    return shape.layers * forward * (3 if shape.recompute else 2)


def map_gradient_bytes(shape: Shape, layout: Layout) -> float:
    """The gradients of what every tensor-parallel GPU holds whole and computes on its own rows are summed over them, once a step."""
    return 2 * gathered(shape.replicated * shape.item, layout.tensor_parallel) if shape.mapped else 0
