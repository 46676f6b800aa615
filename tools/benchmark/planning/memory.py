"""Memory of one GPU at the peak of a training step, in bytes, from shapes alone.

Kept for the backward pass is what autograd keeps of this stack's own modules (tests/tools/test_plan.py compares with torch). Tensor
parallelism splits what lies between a block's norms and its residuals; the norms and the residual stream are whole on each GPU. Not
counted: what an encoding keeps to compute its bias, and what `eager` keeps for encodings that weight or compute scores themselves.
"""

from megatron.attention.blocks import ROWS
from megatron.attention.blockwise import GROUP
from megatron.config.optimizer import ZeroConfig
from megatron.model.loss import LOGITS
from tools.benchmark.planning.shape import Layout, Shape

FLOAT = 4  # bytes of master weights, Adam's moments, scores and softmax
FIELDS = ("weights", "gradients", "optimiser", "buffers", "activations", "logits")


def memory(shape: Shape, layout: Layout, zero: ZeroConfig) -> dict[str, float]:
    """Bytes by kind (FIELDS)."""
    parameters = shape.parameters(layout.tensor_parallel)
    states = model_states(parameters, parameters * shape.trained_share, shape, layout)
    buffers = {"buffers": bucket_bytes(parameters, shape.item, layout.zero_stage, zero)}
    tokens = layout.micro_batch * shape.length
    return {
        **states,
        **buffers,
        "activations": activation_bytes(shape, layout),
        "logits": logit_bytes(tokens, shape.hidden, shape.vocabulary / layout.tensor_parallel, shape.item),
    }


def model_states(parameters: float, trained: float, shape: Shape, layout: Layout) -> dict[str, float]:
    """Weights, gradients and optimiser state (ZeRO; Rajbhandari et al. 2020, section 3.1).

    Adam in half precision takes 2 + 2 + 12 bytes a parameter: weight, gradient; master weight and two moments in float32. Stage 1 divides
    the last by the data-parallel size, stage 2 also the second, stage 3 also the first.
    """
    moments = 2 * FLOAT if shape.adam else FLOAT * shape.momentum
    master = FLOAT if shape.item < FLOAT or layout.zero_stage else 0  # ZeRO keeps a copy of its part, whatever the format
    shards = layout.data_parallel
    return {
        "weights": shape.item * parameters / (shards if layout.zero_stage >= 3 else 1),
        "gradients": shape.item * trained / (shards if layout.zero_stage >= 2 else 1),
        "optimiser": (master + moments) * trained / (shards if layout.zero_stage >= 1 else 1),
    }


def bucket_bytes(parameters: float, item: int, stage: int, zero: ZeroConfig) -> float:
    """Buffers in which ZeRO collects gradients to reduce, two with `overlap_comm`; under stage 3 also the parameters that are whole."""
    if stage == 0:
        return 0
    buckets = item * min(zero.reduce_bucket_size, parameters) * (2 if zero.overlap_comm else 1)
    return buckets + (item * min(zero.stage3_max_live_parameters, parameters) if stage == 3 else 0)


def activation_bytes(shape: Shape, layout: Layout) -> float:
    """What the blocks keep for the backward pass, and room for the gradients of one block's (of the same shapes).

    With `checkpoint_activations`, a segment's input instead of what is inside, but for the segment that is being recomputed.
    """
    tokens = layout.micro_batch * shape.length
    block = block_bytes(shape, tokens, layout.tensor_parallel) + attention_bytes(shape, layout.micro_batch, layout.tensor_parallel)
    room = block + workspace_bytes(shape, layout.micro_batch, layout.tensor_parallel)
    if not shape.recompute:
        return shape.layers * block + room
    segments = -(-shape.layers // shape.segment)
    return segments * tokens * shape.hidden * shape.item + shape.segment * block + room


def block_bytes(shape: Shape, tokens: int, tensor_parallel: int) -> float:
    """Kept by a block apart from what attention keeps of pairs of positions.

    Whole: the norms' inputs and results, float32 statistics of a norm, dropout's bytes. Split: queries, keys and values (rotated ones
    besides), attention's result (in float32 where block-wise) and a copy for the next product, and the MLP's intermediate results.
    With a DAPE map under tensor parallelism, keys and values are there with all heads.
    """
    whole = shape.item * shape.hidden * (shape.residuals + shape.norms) + 2 * FLOAT * shape.norms + 2 * shape.dropout * shape.hidden
    exchanged = shape.mapped and tensor_parallel > 1
    keys_and_values = 2 * shape.attended * (tensor_parallel if exchanged else 1)  # repeated for groups of query heads
    rotated = 2 * shape.attended if shape.rotates and shape.keys == shape.attended else 0  # else the repeated ones are the rotated ones
    result = shape.item + (FLOAT if shape.backend == "blockwise" else shape.item)
    mlp = (4 if shape.gated else 2) * shape.mlp
    split = shape.item * (shape.attended + keys_and_values + rotated + mlp) + result * shape.attended
    return tokens * (whole + split / tensor_parallel)


def attention_bytes(shape: Shape, batch: int, tensor_parallel: int) -> float:
    """Kept of pairs of positions in one block: n^2 numbers, but for fused and block-wise attention, which keep none.

    `eager`: the softmax in float32, and in the run's format where that is another; of a map its inputs and the hidden map, each once for
    every column of its kernel, the hidden map once more where there are several. `sdpa`: a bias in the run's format, one for all sequences.
    """
    pairs = shape.length**2 / tensor_parallel
    if shape.backend == "sdpa":
        return shape.item * shape.heads * pairs if shape.bias else 0
    if shape.backend != "eager":
        return 0
    softmax = shape.heads * (FLOAT + (shape.item if shape.item < FLOAT else 0))
    hidden = shape.map_width * (shape.kernel + (shape.kernel > 1)) if shape.mapped else 0
    return batch * pairs * (softmax + FLOAT * (shape.kernel * shape.channels + hidden))


def workspace_bytes(shape: Shape, batch: int, tensor_parallel: int) -> float:
    """What block-wise attention works in on a GPU: scores of some rows, their gradient, the mapped scores and the hidden map, in float32;
    keys, values, and the gradients of both in float32."""
    if shape.backend != "blockwise":
        return 0
    rows = ROWS * batch * shape.length
    scores = min(shape.heads * rows, max(GROUP, shape.heads * ROWS * shape.length))
    maps = scores / shape.heads * (shape.heads * (3 if shape.mapped else 2) + (shape.map_width if shape.mapped else 0))
    return FLOAT * (maps + 4 * batch * shape.length * shape.attended) / tensor_parallel


def logit_bytes(tokens: int, hidden: int, vocabulary: float, item: int) -> float:
    """The head's norm's input and result, all logits (which become their gradient in place), and two float32 copies of a part of them."""
    logits = tokens * vocabulary
    return item * (2 * tokens * hidden + logits) + 2 * FLOAT * min(logits, LOGITS["cuda"])
