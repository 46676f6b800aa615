"""A learned bias for each bucket of distances and each head (T5; Raffel et al. 2020, section 2.1), scaled to act after 1/sqrt(d)."""

import math

import torch
from torch import Tensor, nn

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig
from megatron.positional.base import DistanceEncoding
from megatron.positional.initialise import fill_normal


class T5(DistanceEncoding):
    """sqrt(d) * table[bucket(t), h]: one bucket a distance at first, then buckets whose width grows with the distance."""

    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, heads: int, **sizes: int):
        super().__init__(config, heads=heads, **sizes)
        if config.rpe_max_distance <= config.rpe_num_buckets // 2:
            raise ConfigError(
                f"`rpe_max_distance: {config.rpe_max_distance}` must be above half of `rpe_num_buckets: {config.rpe_num_buckets}`: "
                f"distances below that half have a bucket each."
            )
        self.table = nn.Parameter(torch.zeros(config.rpe_num_buckets, heads))
        starts = torch.tensor(bucket_starts(config.rpe_num_buckets, config.rpe_max_distance))
        self.register_buffer("starts", starts, persistent=False)  # [buckets - 1] integers

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        fill_normal(self.table, math.sqrt(2 / sum(self.table.shape)), generator)  # Xavier

    def distance_bias(self, distances: Tensor) -> Tensor:
        buckets = torch.bucketize(distances, self.starts, right=True)  # [n]
        return math.sqrt(self.head_dim) * self.table.to(self.precision)[buckets].T


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each bucket but the first, of bucket(t) = t below e = buckets // 2, else at most buckets - 1 and
    e + floor(ln(t / e) / ln(max_distance / e) * (buckets - e)). Found in whole numbers, so that no logarithm's rounding moves a boundary.
    """
    exact = buckets // 2
    wide = buckets - exact
    starts = list(range(1, exact + 1))
    distance = exact
    for step in range(1, wide):  # smallest t with (t / e)^wide >= (max_distance / e)^step
        while distance**wide * exact**step < max_distance**step * exact**wide:
            distance += 1
        starts.append(distance)
    return starts
