"""Attention by flash kernels alone: causal, without a bias. The flash-attn package where it is installed and fits, else torch's own."""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from megatron.attention.mask import AttentionMask
from megatron.attention.sdpa import sdpa_attention
from megatron.positional.base import PositionalEncoding


def flash_attention(
    q: Tensor,  # [b, h, q, d]
    k: Tensor,  # [b, g, k, d], g divides h
    v: Tensor,  # [b, g, k, d]
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    mask: AttentionMask,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attention of already rotated queries and keys -> [b, h, q, d].

    What is more than the triangle (documents, padding, several queries after cached keys) goes to torch's other kernels.
    """
    single = q.shape[2] == 1  # one query after its keys sees them all
    if not mask.only_causal or (q.shape[2] != k.shape[2] and not single):
        return sdpa_attention(q, k, v, positional, query_positions, key_positions, mask, dropout_probability)
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and find_spec("flash_attn") is not None:
        from flash_attn import flash_attn_func

        inputs = (each.transpose(1, 2) for each in (q, k, v))  # [b, n, heads, d]
        return flash_attn_func(*inputs, dropout_p=dropout_probability, causal=not single).transpose(1, 2)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [b, h, k, d]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout_probability, is_causal=not single)
