"""Losses of windows of a text, the windows dealt out over the processes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from megatron.parallel.distributed import Processes
from megatron.positional.sampling import PositionSampling


class Interrupted(Exception):
    """The evaluation was asked to stop."""


class TokenStream(Protocol):
    """Evaluation text as one run of token ids."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Sequences:
    """Windows of one length, and which of their tokens count."""

    length: int  # tokens that the model reads
    ends: tuple[int, ...]  # where each window ends in the text: index after its last label
    scored: int  # the last `scored` labels of each count
    bucket_ends: tuple[int, ...]  # losses are kept as means over buckets of the scored labels; the last bucket ends at `scored`

    @property
    def widths(self) -> np.ndarray:
        """[buckets] labels in each bucket."""
        return np.diff(self.bucket_ends, prepend=0)

    def window(self, stream: TokenStream, index: int) -> np.ndarray:
        """[length + 1] tokens: inputs and, shifted by one, labels."""
        return stream.slice(self.ends[index] - self.length - 1, self.ends[index])


@dataclass
class Scorer:
    """Scores windows of `stream`; what was scored once is kept, for protocols share windows.

    `model(tokens [b, n], labels [b, s], position_ids=None or [b, n], last=s)` gives per-token losses [b, s]: logits exist for scored tokens
    only. `interrupted` is asked before each batch, on all processes, and must answer alike on all: Interrupted is raised where it is true.
    With `sampling`, positions are drawn for each window and length: the same at every evaluation of a run.
    """

    model: nn.Module
    stream: TokenStream
    processes: Processes
    tokens_per_batch: int
    track: Callable[[Iterable, str, int], Iterable] = lambda batches, _description, _total: batches
    interrupted: Callable[[], bool] = lambda: False
    sampling: PositionSampling | None = None
    scored: dict[Sequences, np.ndarray] = field(default_factory=dict)

    def losses(self, sequences: Sequences, description: str) -> np.ndarray:
        """float64 [windows, buckets]: mean losses in nats a token; on every process, and the same whatever their number."""
        if sequences not in self.scored:
            was_training = self.model.training
            self.model.eval()
            try:
                self.scored[sequences] = self._score(sequences, description)
            finally:
                self.model.train(was_training)
        return self.scored[sequences]

    @torch.no_grad()
    def _score(self, sequences: Sequences, description: str) -> np.ndarray:
        count, batch = len(sequences.ends), max(1, self.tokens_per_batch // sequences.length)
        per_rank = -(-count // self.processes.world_size)
        first = self.processes.rank * per_rank
        mine = [min(index, count - 1) for index in range(first, first + per_rank)]  # all ranks do as many
        own: dict[int, list[float]] = {}
        starts = range(0, per_rank, batch)
        for start in self.track(starts, description, len(starts)):
            if self.interrupted():
                raise Interrupted
            chosen = mine[start : start + batch]
            token_losses = self._token_losses(sequences, chosen).double().cpu()  # [b, scored]
            means = torch.stack([part.mean(dim=1) for part in token_losses.split(sequences.widths.tolist(), dim=1)], dim=1)
            own |= zip(chosen, means.tolist(), strict=True)
        merged = {index: values for part in self.processes.gather(own) for index, values in part.items()}
        return np.array([merged[index] for index in range(count)])

    def _token_losses(self, sequences: Sequences, chosen: list[int]) -> Tensor:
        """[b, scored] of the windows with these numbers."""
        tokens = torch.from_numpy(np.stack([sequences.window(self.stream, index) for index in chosen])).long()  # [b, length + 1]
        tokens = tokens.to(self.processes.device)
        positions = None  # 0, 1, 2, ...
        if self.sampling is not None:
            purposes = [f"evaluation at {sequences.length}, sequence {index}" for index in chosen]
            positions = self.sampling.draw_batch(sequences.length, purposes).to(self.processes.device)
        labels = tokens[:, -sequences.scored :]
        return self.model(tokens[:, :-1], labels=labels, position_ids=positions, last=sequences.scored)
