"""Attention through torch's flex_attention: a bias that is looked up by distance inside a fused GPU kernel, with its gradient."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from megatron.attention.choose import Attention
from megatron.attention.mask import AttentionMask
from megatron.config.base import ConfigError
from megatron.positional.base import PositionalEncoding

MASKED = float("-inf")


def flex_backend() -> Attention:
    """The backend, compiled. Raises ConfigError without a GPU: torch has no backward pass for it on a CPU."""
    if not torch.cuda.is_available():
        raise ConfigError("attention_backend: flex needs a GPU, and torch finds none. Use `auto`, blockwise or sdpa.")
    compiled = torch.compile(flex_attention)
    return lambda *inputs: attend_by_distance(compiled, *inputs)


def attend_by_distance(
    kernel: Attention,
    q: Tensor,  # [b, h, q, d]
    k: Tensor,  # [b, g, k, d], g divides h
    v: Tensor,  # [b, g, k, d]
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    mask: AttentionMask,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attention of already rotated queries and keys -> [b, h, q, d] by `kernel`, which is flex_attention, compiled or not.

    Raises ConfigError for dropout on the probabilities, which flex_attention does not have.
    """
    if dropout_probability > 0:
        raise ConfigError("attention_backend: flex cannot do attention_dropout. Use `auto`, blockwise or sdpa.")
    batch = len(q)
    rows, keys = (each.expand(batch, -1) for each in (query_positions, key_positions))  # [b, q], [b, k]
    allowed = mask.allowed()
    allowed = allowed[(None,) * (4 - allowed.dim())].expand(batch, 1, -1, -1)[:, 0]  # [b, q, k]
    table = None
    if "bias" in positional.acts_on:
        longest = int(torch.maximum(rows.max() - keys.min(), keys.max() - rows.min()))
        table = positional("distance_bias", torch.arange(longest + 1, device=q.device))  # [h, n]

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        biased = score if table is None else score + table[h, (rows[b, i] - keys[b, j]).abs()]
        return torch.where(allowed[b, i, j], biased, MASKED)

    return kernel(q, k, v, score_mod=change, enable_gqa=q.shape[1] != k.shape[1])
