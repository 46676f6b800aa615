"""A small network of the distance relative to the query's position, both on a logarithmic scale (FIRE; Li et al. 2024, section 3)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding, pairwise_distances
from megatron.positional.dape import SLOPE
from megatron.positional.initialise import fill_as_linear

EPSILON = 1e-6


class Fire(PositionalEncoding):
    """W2 act(W1 n + b1) + b2 with n = ln(|c t| + 1) / (ln(|c max(i, |mu L|)| + 1) + 1e-6); widths 1 -> D -> h.

    c and mu are learned; L is fixed. Unless `fire_activation` says otherwise, the activation is ReLU alone and LeakyReLU under a DAPE
    map, as in DAPE's runs.
    """

    acts_on = frozenset({"bias"})
    translation_invariant = False

    def __init__(self, config: PositionalConfig, *, heads: int, seq_length: int, **sizes: int):
        super().__init__(config, heads=heads, seq_length=seq_length, **sizes)
        self.length = config.fire_threshold if config.fire_threshold is not None else seq_length // 2  # L, tokens
        self.activation = config.fire_activation  # None: by whether there is a DAPE map
        self.c = nn.Parameter(torch.full((1,), 0.1))
        self.threshold_multiplier = nn.Parameter(torch.ones(1))  # mu
        self.hidden_weight = nn.Parameter(torch.zeros(config.fire_hidden_size, 1))  # [D, 1]
        self.hidden_bias = nn.Parameter(torch.zeros(config.fire_hidden_size))
        self.output_weight = nn.Parameter(torch.zeros(heads, config.fire_hidden_size))  # [h, D]
        self.output_bias = nn.Parameter(torch.zeros(heads))

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        self.c.fill_(0.1)
        self.threshold_multiplier.fill_(1.0)
        fill_as_linear(self.hidden_weight, self.hidden_bias, generator)
        fill_as_linear(self.output_weight, self.output_bias, generator)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        relative = self.relative_distances(query_positions, key_positions)[..., None, :, :]  # [..., 1, q, k]
        weight, bias = self.hidden_weight.to(self.precision), self.hidden_bias.to(self.precision)
        slope = SLOPE if self.activation == "leaky_relu" or (self.activation is None and self.score_map is not None) else 0.0
        hidden = leaky_relu(relative * weight[:, :, None] + bias[:, None, None], slope)  # [..., D, q, k]
        output = torch.einsum("hc,...cqk->...hqk", self.output_weight.to(self.precision), hidden)
        return output + self.output_bias.to(self.precision)[:, None, None]

    def relative_distances(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., q], [..., k] -> n [..., q, k]."""
        c = self.c.to(self.precision)
        distances = pairwise_distances(query_positions, key_positions).to(self.precision)
        scale = torch.maximum(query_positions.to(self.precision), self.threshold())[..., None]  # [..., q, 1]
        return (c * distances).abs().log1p() / ((c * scale).abs().log1p() + EPSILON)

    def threshold(self) -> Tensor:
        """|mu L| [1], in tokens: queries before it are scaled as if they stood there."""
        return (self.threshold_multiplier.to(self.precision) * self.length).abs()

    def parameter_statistics(self) -> dict[str, float]:
        return {"c": self.c.item(), "threshold": self.threshold().item()}
