"""Scores made of a content part and a position part, each with a learned bias on the query (Dai et al. 2019, section 3.3)."""

import math

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding, pairwise_distances
from megatron.positional.initialise import fill_as_linear, fill_normal
from megatron.positional.sinusoidal import check_even, sinusoid

STD = 0.02  # of u and v at the start


class TransformerXL(PositionalEncoding):
    """((q_i + u_h).k_j + (q_i + v_h).(W_r s(t))_h) / sqrt(d) with s the sinusoid of the distance over h * d components."""

    acts_on = frozenset({"scores"})

    def __init__(self, config: PositionalConfig, *, heads: int, head_dim: int, **sizes: int):
        super().__init__(config, heads=heads, head_dim=head_dim, **sizes)
        width = heads * head_dim
        check_even(width, config.pos_emb)
        self.u = nn.Parameter(torch.zeros(heads, head_dim))  # added to the query that meets keys
        self.v = nn.Parameter(torch.zeros(heads, head_dim))  # added to the query that meets distances
        self.projection = nn.Parameter(torch.zeros(width, width))  # W_r; output index = head * head_dim + component

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        fill_normal(self.u, STD, generator)
        fill_normal(self.v, STD, generator)
        fill_as_linear(self.projection, None, generator)

    def scores(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        content = (q + self.u.to(q.dtype)[:, None]) @ k.transpose(-1, -2)  # [b, h, q, k]
        distances = pairwise_distances(query_positions, key_positions)  # [..., q, k]
        table = self._distance_keys(torch.arange(int(distances.max()) + 1, device=q.device), q.dtype)  # [h, n, d]
        by_distance = (q + self.v.to(q.dtype)[:, None]) @ table.transpose(-1, -2)  # [b, h, q, n]
        position = by_distance.gather(-1, distances.unsqueeze(-3).expand_as(content))
        return (content + position) / math.sqrt(self.head_dim)

    def _distance_keys(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """Distances [n] -> W_r s(t), by heads: [h, n, d]."""
        sines = sinusoid(distances, self.heads * self.head_dim, dtype)  # [n, h * d]
        return (sines @ self.projection.to(dtype).T).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)

    def parameter_statistics(self) -> dict[str, float]:
        return {f"{name}_norm": getattr(self, name).detach().float().norm().item() for name in ("u", "v", "projection")}
