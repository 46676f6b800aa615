"""The plain truth: attention with all [b, h, q, k] scores in memory. Every other backend is tested against this one."""

import math

import torch
from torch import Tensor
from torch.nn.functional import dropout

from megatron.attention.mask import AttentionMask
from megatron.positional.base import PositionalEncoding


def eager_attention(
    q: Tensor,  # [b, h, q, d]
    k: Tensor,  # [b, g, k, d], g divides h
    v: Tensor,  # [b, g, k, d]
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    mask: AttentionMask,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attention of already rotated queries and keys -> [b, h, q, d]. Scores and softmax are float32 at least, whatever the inputs' type."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [b, h, k, d]
    scores = masked_scores(q, k, positional, query_positions, key_positions, mask)
    probabilities = dropout(scores.softmax(dim=-1), dropout_probability, training=dropout_probability > 0)
    return probabilities.to(v.dtype) @ v


def masked_scores(
    q: Tensor, k: Tensor, positional: PositionalEncoding, query_positions: Tensor, key_positions: Tensor, mask: AttentionMask
) -> Tensor:
    """All the encoding has to say about the scores, then the mask: [b, h, q, k], -inf where not allowed. Keys have all h heads here."""
    allowed = mask.allowed()  # [q, k] or [b, 1, q, k]
    high = torch.promote_types(q.dtype, torch.float32)
    if "scores" in positional.acts_on:
        scores = positional("scores", q.to(high), k.to(high), query_positions, key_positions)
    else:
        scores = (q.to(high) / math.sqrt(q.shape[-1])) @ k.to(high).transpose(-1, -2)
    if "adjust" in positional.acts_on:
        scores = positional("adjust", scores, q.to(high), allowed)
    if "weight" in positional.acts_on:
        scores = scores * positional("weight", query_positions, key_positions)
    bias = positional("bias", query_positions, key_positions) if "bias" in positional.acts_on else None
    if positional.score_map is not None:
        scores = positional.score_map("refine", scores, bias, allowed, mask.document_starts())
    elif bias is not None:
        scores = scores + bias
    return scores.masked_fill(~allowed, float("-inf"))
