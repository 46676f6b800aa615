"""The DAPE paper's protocol: the same text, scored behind more and more context.

`sequences` places are fixed in the evaluation text. At each place the same last tokens are scored at every length T; only the number
of tokens before them (T minus the scored ones) varies. With `last` = 256 and the shortest length 128, the last 128 tokens are scored
everywhere.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from megatron.errors import UserError
from megatron.parallel.distributed import Processes
from megatron.positional.sampling import PositionSampling

PROTOCOL = "last"


class Interrupted(Exception):
    """The evaluation was asked to stop."""


class TokenStream(Protocol):
    """Evaluation text as one run of token ids."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> np.ndarray: ...


@dataclass(frozen=True)
class LengthResult:
    """One line of the extrapolation table; `loss` in nats a token, `stderr` the standard error of `loss` over the sequences."""

    eval_length: int
    scored_tokens: int
    loss: float
    stderr: float

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def record(self, step: int, split: str) -> dict[str, object]:
        """The evaluation line of metrics.jsonl."""
        return {
            "step": step,
            "split": split,
            "protocol": PROTOCOL,
            "eval_length": self.eval_length,
            "scored_tokens": self.scored_tokens,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "stderr": self.stderr,
        }


@dataclass(frozen=True)
class Places:
    """Where the scored tokens end in the text, and how many are scored at each place."""

    ends: tuple[int, ...]  # index after the last label
    scored: int

    def window(self, stream: TokenStream, index: int, length: int) -> np.ndarray:
        """[length + 1] tokens that end at place `index`: inputs and, shifted by one, labels."""
        end = self.ends[index]
        return stream.slice(end - length - 1, end)


def choose_places(stream_length: int, lengths: Sequence[int], sequences: int, last: int, *, what: str) -> Places:
    """Spread `sequences` places evenly over the text, as many as fit without scoring a token twice.

    Raises UserError when the text (`what` names it) is shorter than the longest length plus one.
    """
    longest, scored = max(lengths), min(last, *lengths)
    room = stream_length - (longest + 1)
    if room < 0:
        raise UserError(
            f"{what} has {stream_length:,} tokens, eval_lengths asks for sequences of {longest:,} + 1. "
            "Give it more text (`split`, valid_data_paths) or shorten eval_lengths."
        )
    count = min(sequences, room // scored + 1)
    gaps = max(count - 1, 1)
    return Places(tuple(longest + 1 + index * room // gaps for index in range(count)), scored)


def evaluate_lengths(
    model: nn.Module,
    stream: TokenStream,
    places: Places,
    lengths: Sequence[int],
    processes: Processes,
    tokens_per_batch: int,
    track: Callable[[Iterable, str, int], Iterable] = lambda batches, _description, _total: batches,
    interrupted: Callable[[], bool] = lambda: False,
    sampling: PositionSampling | None = None,
) -> list[LengthResult]:
    """Loss at every length, the sequences dealt out over the processes; the same result on every process, whatever their number.

    `interrupted` is asked before each batch, on all processes, and must answer alike on all: Interrupted is raised where it is true.

    `model(tokens [b, n], labels [b, s], position_ids=None or [b, n], last=s)` gives per-token losses [b, s]: logits exist for scored tokens
    only. With `sampling`, positions are drawn for each place and length: the same at every evaluation of a run.
    """
    was_training = model.training
    model.eval()
    try:
        settings = (processes, tokens_per_batch, track, interrupted, sampling)
        return [evaluate_length(model, stream, places, length, *settings) for length in lengths]
    finally:
        model.train(was_training)


@torch.no_grad()
def evaluate_length(
    model: nn.Module,
    stream: TokenStream,
    places: Places,
    length: int,
    processes: Processes,
    tokens_per_batch: int,
    track: Callable[[Iterable, str, int], Iterable],
    interrupted: Callable[[], bool],
    sampling: PositionSampling | None,
) -> LengthResult:
    """Loss of the scored tokens behind a context that makes every sequence `length` tokens long."""
    count = len(places.ends)
    batch = max(1, tokens_per_batch // length)
    per_rank = -(-count // processes.world_size)
    mine = [min(index, count - 1) for index in range(processes.rank * per_rank, (processes.rank + 1) * per_rank)]  # all ranks do as many
    losses = torch.zeros(count, dtype=torch.float64)
    starts = range(0, per_rank, batch)
    for start in track(starts, f"evaluating at {length:,}", len(starts)):
        if interrupted():
            raise Interrupted
        chosen = mine[start : start + batch]
        tokens = torch.from_numpy(np.stack([places.window(stream, index, length) for index in chosen])).long()  # [b, length + 1]
        tokens = tokens.to(processes.device)
        positions = None  # 0, 1, 2, ...
        if sampling is not None:
            positions = sampling.draw_batch(length, [f"evaluation at {length}, sequence {index}" for index in chosen]).to(processes.device)
        labels = tokens[:, -places.scored :]
        token_losses: Tensor = model(tokens[:, :-1], labels=labels, position_ids=positions, last=places.scored)  # [b, scored]
        losses[chosen] = token_losses.double().mean(dim=1).cpu()
    owned = range(processes.rank * per_rank, min((processes.rank + 1) * per_rank, count))
    parts = processes.gather({index: losses[index].item() for index in owned})
    values = np.array([value for part in parts for _, value in sorted(part.items())])  # [count]
    stderr = float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan
    return LengthResult(length, count * places.scored, float(values.mean()), stderr)
