"""Baselines of the attention benchmark: attention the way that the published code computes it, all N x N scores at once, written anew.

Shapes: b batch, h heads, N tokens, d head dim, D width of the map.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu, linear, scaled_dot_product_attention

from megatron.positional.base import PositionalEncoding


def bias_matrix(positional: PositionalEncoding, tokens: int) -> Tensor:
    """The encoding's bias for all pairs: [h, N, N]."""
    positions = torch.arange(tokens)
    return positional("bias", positions, positions)


def eager(q: Tensor, k: Tensor, v: Tensor, positional: PositionalEncoding) -> Tensor:
    """Causal attention [b, h, N, d] with the encoding's bias and, where there is one, its DAPE map on the concatenation of scores and bias.

    The map is two linear layers over permuted [b, N, N, 2h] (kernel 1) or two 1xk convolutions over [b, 2h, N, N], padded with zeros.
    """
    tokens = q.shape[2]
    scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])  # [b, h, N, N]
    bias = bias_matrix(positional, tokens)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    total = scores + bias
    if positional.score_map is not None:
        total = total + _map(scores, bias, future, positional.score_map)
    return total.masked_fill(future, torch.finfo(q.dtype).min).softmax(-1) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, positional: PositionalEncoding) -> Tensor:
    """torch's scaled_dot_product_attention with the bias and the triangle as a float mask: [b, h, N, d]."""
    tokens = q.shape[2]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias_matrix(positional, tokens).masked_fill(future, -math.inf))


def _map(scores: Tensor, bias: Tensor, future: Tensor, score_map: torch.nn.Module) -> Tensor:
    hidden_weight, hidden_bias, output_weight, output_bias = score_map("tensors")
    features = torch.cat([scores, torch.tile(bias, (len(scores), 1, 1, 1))], dim=1)  # [b, 2h, N, N]
    if score_map.kernel_size == 1:
        hidden = leaky_relu(linear(features.permute(0, 2, 3, 1), hidden_weight[:, :, 0], hidden_bias), 0.01)
        return linear(hidden, output_weight[:, :, 0], output_bias).permute(0, 3, 1, 2)
    padding = (0, score_map.kernel_size // 2)
    features = features.masked_fill(future, 0.0)
    hidden = leaky_relu(conv2d(features, hidden_weight[:, :, None], hidden_bias, padding=padding), 0.01)
    return conv2d(hidden, output_weight[:, :, None], output_bias, padding=padding)
