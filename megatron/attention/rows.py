"""Attention without gradients, a block of query rows at a time: the same numbers, memory linear in the length, no work above the diagonal.

Evaluation at 16 times the training length would otherwise hold [b, h, N, N] scores, and DAPE's hidden map [b, D, N, N] besides.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from megatron.attention.mask import AttentionMask
from megatron.attention.sdpa import sdpa_attention
from megatron.positional.base import PositionalEncoding

ROWS = 64  # a block's scores and hidden map stay in the cache of a CPU core


def in_row_blocks(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`attend`, called per block of query rows against the keys up to the block's last row, where that is possible.

    It is where no gradient is recorded and the mask is causal: every encoding computes a row from that row's own columns alone. A map
    that leaks gets the later columns, too.
    """

    @wraps(attend)
    def attend_rows(
        q: Tensor,  # [b, h, q, d]
        k: Tensor,  # [b, g, k, d]
        v: Tensor,  # [b, g, k, d]
        positional: PositionalEncoding,
        query_positions: Tensor,  # [q] or [b, q]
        key_positions: Tensor,  # [k] or [b, k]
        mask: AttentionMask,
        dropout_probability: float = 0.0,
    ) -> Tensor:
        fused = attend is sdpa_attention and "bias" not in positional.acts_on and mask.only_causal  # needs no mask in memory
        if fused or torch.is_grad_enabled() or not mask.causal or q.shape[-2] <= ROWS:
            return attend(q, k, v, positional, query_positions, key_positions, mask, dropout_probability)
        leaks = positional.score_map is not None and positional.score_map.leaks
        blocks, earlier = [], k.shape[-2] - q.shape[-2]  # earlier: keys before the first query (cached ones)
        for start in range(0, q.shape[-2], ROWS):
            stop = min(start + ROWS, q.shape[-2])
            seen = k.shape[-2] if leaks else earlier + stop
            block = (q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen])
            positions = (query_positions[..., start:stop], key_positions[..., :seen])
            blocks.append(attend(*block, positional, *positions, mask.part(slice(start, stop), slice(seen)), dropout_probability))
        return torch.cat(blocks, dim=-2)

    return attend_rows
