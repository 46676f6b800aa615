"""Seam 1: what a positional encoding may do to a transformer, as hooks whose defaults do nothing.

Shapes: b batch, h query heads, q / k number of query / key positions, d head dim. `positions` are integer tensors, [q] or [b, q]:
always given, never inferred from a shape, so that cached decoding, padding and lengths beyond the training length are right from the start.
"""

from collections.abc import Callable
from copy import copy
from typing import Literal

import torch
from torch import Tensor, nn

from megatron.config.positional import PositionalConfig
from megatron.positional.figures import effective_lengths

OnCall = Literal["distance_bias", "distance_weight", "tensors"]  # more that a module's call can ask for
Hook = Literal["locate", "embed", "rotate", "bias", "weight", "scores", "adjust"]


class PositionalEncoding(nn.Module):
    """One method. A subclass names the hooks it overrides in `acts_on`; attention backends are chosen or refused by that."""

    acts_on: frozenset[Hook] = frozenset()
    translation_invariant: bool = True  # bias and weight depend on the distance alone (then `distance_bias` / `distance_weight` exist)
    rotates_by_length: bool = False  # `rotate` also looks at how long the sequence is: a key/value cache holds keys from before it
    shares_parameters: bool = False  # the method's own parameters serve all layers (a DAPE map is always one per layer)
    score_map: nn.Module | None  # a DAPE map over the heads, applied to (scores, bias, allowed, starts), or None

    def __init__(
        self, config: PositionalConfig, *, heads: int, head_dim: int, hidden_size: int, seq_length: int, max_position_embeddings: int
    ):
        """Every method is built from the same facts; `seq_length` is the training length, `hidden_size` = heads * head_dim."""
        super().__init__()
        self.heads, self.head_dim, self.hidden_size, self.seq_length = heads, head_dim, hidden_size, seq_length
        self.score_map = None
        self.register_buffer("like", torch.zeros(1), persistent=False)  # never read: follows the module's type and device

    @property
    def shared(self) -> bool:
        """Whether one instance serves all layers; `build.build_layers` shares exactly what is to be shared."""
        return self.shares_parameters and self.score_map is None

    @property
    def precision(self) -> torch.dtype:
        """Type of distances, angles and logarithms: float32, or float64 in a float64 module; never half precision."""
        return torch.promote_types(self.like.dtype, torch.float32)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, embedding_std: float) -> None:
        """Fill all parameters from `generator` (CPU). Called once, after construction; `embedding_std` is the model's own."""
        self.initialise_parameters(generator, embedding_std)
        if self.score_map is not None:
            self.score_map.initialise(generator)

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        """Fill the method's own parameters (without the map's); gradients are off."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The method's own parameters (not the map's), for a backend that asks hooks again after ZeRO-3 has put the parameters away."""
        return tuple(parameter.clone() for parameter in self.parameters(recurse=False))

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "PositionalEncoding":
        """The same encoding with `tensors` (in the order of `tensors()`) for parameters: its hooks are functions of them."""
        twin = copy(self)
        twin.__dict__["_parameters"] = dict(zip(self._parameters, tensors, strict=True))
        return twin

    def forward(self, hook: Hook | OnCall, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        """`encoding("bias", i, j)` is `encoding.bias(i, j)` as a module's call, on which ZeRO-3 gathers the parameters."""
        return getattr(self, hook)(*arguments)

    def check_length(self, length: int, dtype: torch.dtype) -> None:
        """Raises UserError where `length` tokens in activations of `dtype` are more than the method can represent."""

    def locate(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [b, k] of the sequence so far, at positions [k] or [b, k] -> positions [b, k] for `embed` and for all other hooks.

        For methods whose positions depend on the text. A position of 0 begins a document (or is padding).
        """
        raise NotImplementedError

    def embed(self, positions: Tensor) -> Tensor:
        """[q] or [b, q] -> [..., q, hidden], added to the word embeddings. Positions below 0 are padding: any value will do."""
        raise NotImplementedError

    def rotate(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [b, h, q, d], k [b, g, k, d] (g key/value heads) -> the same shapes, rotated.

        With `rotates_by_length`, `key_positions` are those of the whole sequence so far; otherwise any part of it may be rotated alone.
        """
        return q, k

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., q], [..., k] -> [..., h, q, k], float32 (float64 parameters give float64), added to the scores."""
        raise NotImplementedError

    def distance_bias(self, distances: Tensor) -> Tensor:
        """Non-negative distances [n] -> [h, n]: `bias` of a translation-invariant method, as a function of |i - j|."""
        raise NotImplementedError

    def distance_weight(self, distances: Tensor) -> Tensor:
        """Non-negative distances [n] -> [h, n]: `weight` of a translation-invariant method, as a function of |i - j|."""
        raise NotImplementedError

    def weight(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., q], [..., k] -> [..., h, q, k], multiplying the scores before the bias is added."""
        raise NotImplementedError

    def scores(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """q [b, h, q, d], k [b, h, k, d] -> [b, h, q, k]: replaces q.k / sqrt(d)."""
        raise NotImplementedError

    def adjust(self, scores: Tensor, q: Tensor, allowed: Tensor) -> Tensor:
        """scores [b, h, q, k], q [b, h, q, d], allowed bool [..., q, k] -> scores with a content-dependent term added."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """Figures of the learnt parameters, the bias and the map, for the metrics at each evaluation."""
        figures = self.parameter_statistics()
        if "bias" in self.acts_on:
            figures |= effective_lengths(self)
        if self.score_map is not None:
            figures |= {f"dape_{name}": value for name, value in self.score_map.statistics().items()}
        return figures

    def parameter_statistics(self) -> dict[str, float]:
        """Figures of the method's own parameters."""
        return {}


class DistanceEncoding(PositionalEncoding):
    """A bias, a weight or both that are functions of the distance |i - j| alone: a subclass writes `distance_bias` / `distance_weight`."""

    acts_on = frozenset({"bias"})

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self._by_distance(self.distance_bias, query_positions, key_positions)

    def weight(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self._by_distance(self.distance_weight, query_positions, key_positions)

    @staticmethod
    def _by_distance(function: Callable[[Tensor], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Evaluate `function` once per distance that can occur, then look it up for each pair: [..., h, q, k]."""
        distances = pairwise_distances(query_positions, key_positions)  # [..., q, k]
        table = function(torch.arange(int(distances.max()) + 1, device=distances.device))  # [h, n]
        return table[:, distances].movedim(0, -3)


def pairwise_distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[..., q], [..., k] -> |i - j| [..., q, k], integers (exact at any length and in any activation type)."""
    return (query_positions[..., :, None] - key_positions[..., None, :]).abs()
