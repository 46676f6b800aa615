"""Positions drawn at random from a longer range (Ruoss et al. 2023, section 3), for any encoding that works with positions.

A sequence of n tokens gets n distinct positions in ascending order out of 0 .. position_max - 1 instead of 0 .. n - 1, so that training
shows a model the positions and distances of sequences far longer than those it is trained on. As in the paper, the same is done at test
time. The paper draws once per batch; here every sequence has its own draw, which does not depend on how sequences are put into batches.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megatron.config.positional import PositionalConfig


@dataclass(frozen=True)
class PositionSampling:
    """Draws as functions of (seed, what the positions are for)."""

    position_max: int
    seed: int

    def draw(self, length: int, purpose: str) -> Tensor:
        """int64 [length], on the CPU: ascending, all different, each subset of 0 .. position_max - 1 as likely as any other.

        `purpose` names the sequence, as in "step 3, sequence 17": other names, other draws. Raises ValueError where length > position_max.
        """
        digest = hashlib.sha256(f"{self.seed}/positions/{purpose}".encode()).digest()
        drawn = np.random.default_rng(int.from_bytes(digest, "big")).choice(self.position_max, length, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(drawn))

    def draw_batch(self, length: int, purposes: list[str]) -> Tensor:
        """int64 [b, length], on the CPU: one draw per purpose."""
        return torch.stack([self.draw(length, purpose) for purpose in purposes])


def position_sampling(config: PositionalConfig, seed: int) -> PositionSampling | None:
    """What `position_sampling` asks for; None: positions count 0, 1, 2, ..."""
    return PositionSampling(config.position_max, seed) if config.position_sampling == "randomized" else None
