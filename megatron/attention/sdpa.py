"""Attention through torch's scaled_dot_product_attention: for encodings that add a bias to the scores, or say nothing about them."""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from megatron.attention.mask import AttentionMask
from megatron.positional.base import PositionalEncoding


def sdpa_attention(
    q: Tensor,  # [b, h, q, d]
    k: Tensor,  # [b, g, k, d], g divides h
    v: Tensor,  # [b, g, k, d]
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    mask: AttentionMask,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attention of already rotated queries and keys -> [b, h, q, d]; gradients flow to the bias.

    Softmax is float32 inside torch's kernels whatever the inputs' type. The bias is computed in float32 and rounded once to the type of
    the queries: torch's GPU kernels take no other type (some refuse a float32 bias beside half-precision queries, some misread it).
    """
    attention_mask, triangle = None, False
    if "bias" in positional.acts_on:
        bias = positional("bias", query_positions, key_positions)  # [..., h, q, k]
        attention_mask = bias.masked_fill(~mask.allowed(), float("-inf")).to(q.dtype)
    elif not mask.only_causal:
        attention_mask = mask.allowed()
    elif q.shape[2] == k.shape[2]:
        triangle = True
    elif q.shape[2] > 1:  # torch's own triangle would start at the first key; a single query sees every key
        attention_mask = mask.allowed()
    if attention_mask is not None:
        attention_mask = attention_mask[(None,) * (4 - attention_mask.dim())]  # [b or 1, h or 1, q, k]
    return scaled_dot_product_attention(
        q, k, v, attn_mask=attention_mask, dropout_p=dropout_probability, is_causal=triangle, enable_gqa=q.shape[1] != k.shape[1]
    )
