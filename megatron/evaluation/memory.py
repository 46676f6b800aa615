"""What one forward pass of an evaluation takes in memory, estimated before it is begun: an upper bound, from shapes alone.

Weights are there already. Hidden states are whole; scores exist for a block of query rows, logits for a share of the tokens.
"""

import torch

from megatron.attention import rows as row_blocks
from megatron.attention.blocks import Blocks
from megatron.attention.blockwise import GROUP
from megatron.attention.mask import AttentionMask
from megatron.config import Config
from megatron.model.gpt import GPT
from megatron.model.loss import rows_at_once

FLOAT = 4  # bytes of scores, of the softmax and of the loss
TEMPORARIES = 6  # tensors of the scores' size that are there at once: scores, bias, mask, softmax, ...
OF_HOOKS = 6  # more of them where an encoding computes or adjusts scores itself


def forward_bytes(model: GPT, config: Config, batch: int, length: int, scored: int) -> int:
    """Bytes at the peak of scoring the last `scored` tokens of `batch` sequences of `length` tokens."""
    head, tokens = model.head, batch * length
    item = head.weight.element_size()
    keys = config.model
    attended = keys.num_attention_heads * keys.head_dim
    qkv = attended + 2 * keys.kv_heads * keys.head_dim
    projected = 3 * qkv + 2 * attended  # queries, keys and values as projected, by head and rotated; the result by head and by token
    full_precision = 2 * attended * FLOAT // item  # keys and values of all heads
    mlp = (3 if keys.gated else 2) * keys.mlp_width
    hidden = tokens * item * (3 * keys.hidden_size + max(projected + full_precision, mlp))
    rows_of_logits = min(batch * scored, rows_at_once(model.vocab_size, head.weight.device))
    logits = batch * scored * keys.hidden_size * item + 3 * FLOAT * rows_of_logits * model.vocab_size
    return hidden + score_bytes(model, config, batch, length) + logits


def score_bytes(model: GPT, config: Config, batch: int, length: int) -> int:
    """Bytes of the scores, and of all that is computed from them, that are there at once."""
    heads, attention = config.model.num_attention_heads, model.layers[0].attention
    backend = attention.attend.__module__.rpartition(".")[2]
    if backend in ("eager", "sdpa"):
        positions = row_blocks.ROWS * length * batch
        if backend == "sdpa" and "bias" not in attention.positional.acts_on:
            return 0
    elif backend == "blockwise":
        places = torch.empty(length, device="meta")
        positions = Blocks(AttentionMask(places, places), length, length, 0).rows * length
        on_cpu = model.head.weight.device.type == "cpu"
        positions *= torch.get_num_threads() if on_cpu else min(batch, max(1, GROUP // (heads * positions)))
    else:  # fused kernels
        return 0
    return FLOAT * positions * channels(model, config)


def channels(model: GPT, config: Config) -> int:
    """Numbers for each (query, key) pair of a block."""
    positional, keys = model.layers[0].attention.positional, config.positional
    heads = config.model.num_attention_heads
    mapped = 0 if positional.score_map is None else 2 * (keys.dape_hidden_size + heads)
    learned = 0 if positional.translation_invariant else 2 * keys.fire_hidden_size
    hooked = OF_HOOKS * heads if positional.acts_on & {"scores", "adjust"} else 0
    return TEMPORARIES * heads + mapped + learned + hooked
