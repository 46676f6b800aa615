"""The papers' evaluation protocols: which windows of a text there are, which of their tokens count, and what the losses become.

A text with at most `sequences` windows of the longest length is evaluated whole; of a longer one, that many are taken, evenly spaced. Every
protocol scores the same text at every length, so that lengths differ by the context alone (docs/evaluation.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatron.errors import UserError
from megatron.evaluation.scoring import Scorer, Sequences

MOST_BUCKETS = 64  # of positions

Scored = Sequence[tuple[Sequences, np.ndarray]]  # windows with their losses [windows, buckets]
Record = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """What the protocols of one evaluation have in common."""

    lengths: tuple[int, ...]
    sequences: int  # most windows of the longest length
    last: int  # tokens scored at the end of a sequence
    stride: int
    training_length: int


@dataclass(frozen=True)
class Plan:
    """A protocol at one length, over one text."""

    protocol: str
    length: int
    parts: tuple[Sequences, ...]
    stride: int | None

    def record(self, scorer: Scorer) -> Record:
        """Score, and put the losses together: the fields of an evaluation's line but for its step and split."""
        scored = [(part, scorer.losses(part, f"{self.protocol}, evaluating at {part.length:,}")) for part in self.parts]
        stride = {} if self.stride is None else {"stride": self.stride}
        return {"protocol": self.protocol, "eval_length": self.length, **stride, **PROTOCOLS[self.protocol].reduce(scored)}


@dataclass(frozen=True)
class Protocol:
    """How a text is cut, and how the losses of its windows are put together."""

    cut: Callable[[int, int, Amount], tuple[Sequences, ...]]  # (tokens of the text, length, amount); none: nothing to do at this length
    reduce: Callable[[Scored], Record]


def make_plans(protocols: Sequence[str], text: int, amount: Amount, *, what: str) -> list[Plan]:
    """Every protocol (those without a text left out) at every length, for a text of `text` tokens that `what` names.

    Raises UserError when the text is shorter than the longest length plus one.
    """
    longest = max(amount.lengths)
    if text < longest + 1:
        raise UserError(
            f"{what} has {text:,} tokens, eval_lengths asks for sequences of {longest:,} + 1. "
            "Give it more text (`split`, valid_data_paths) or shorten eval_lengths."
        )
    return [
        Plan(name, length, parts, amount.stride if name == "sliding" else None)
        for name in protocols
        if name in PROTOCOLS
        for length in amount.lengths
        if (parts := PROTOCOLS[name].cut(text, length, amount))
    ]


def last_tokens(text: int, length: int, amount: Amount) -> tuple[Sequences, ...]:
    """DAPE: at fixed places the same last tokens count, behind as much context as makes the sequence `length` tokens long."""
    return (ending_at_places(text, length, amount, min(amount.last, *amount.lengths)),)


def gain_of_context(text: int, length: int, amount: Amount) -> tuple[Sequences, ...]:
    """The last tokens behind the whole sequence, and behind no more context than the model was trained with."""
    if length <= amount.training_length:
        return ()
    scored = min(amount.last, amount.training_length, *amount.lengths)
    return tuple(ending_at_places(text, each, amount, scored) for each in (length, amount.training_length))


def non_overlapping(text: int, length: int, amount: Amount) -> tuple[Sequences, ...]:
    """KERPLE: the text, or the part of it that is taken, is cut into sequences; all tokens count."""
    longest = max(amount.lengths)
    stretches = (text - 1) // longest
    if stretches <= amount.sequences:
        starts = range(0, (text - 1) // length * length, length)
    else:
        firsts = [index * longest for index in spread(stretches, amount.sequences)]
        starts = [first + offset for first in firsts for offset in range(0, longest // length * length, length)]
    return (Sequences(length, tuple(start + length + 1 for start in starts), length, position_buckets(length, amount.training_length)),)


def sliding_window(text: int, length: int, amount: Amount) -> tuple[Sequences, ...]:
    """ALiBi: windows move by `stride`, and only tokens count that no earlier window held: of the first window all.

    Of a text that is not evaluated whole, windows after the first of the longest length are taken: those that end at the same places.
    """
    longest, stride = max(amount.lengths), amount.stride
    moves = (text - longest - 1) // stride  # windows of the longest length after the first
    if moves < amount.sequences:
        first = Sequences(length, (length + 1,), length, (length,))
        ends = tuple(range(length + 1 + stride, text + 1, stride))
        return (first, Sequences(length, ends, stride, (stride,))) if ends else (first,)
    ends = tuple(longest + 1 + (index + 1) * stride for index in spread(moves, amount.sequences))
    return (Sequences(length, ends, stride, (stride,)),)


def ending_at_places(text: int, length: int, amount: Amount, scored: int) -> Sequences:
    """Windows that end at places spread evenly over the text: as many as fit without scoring a token twice, at most `sequences`."""
    longest = max(amount.lengths)
    room = text - (longest + 1)
    count = min(amount.sequences, room // scored + 1)
    gaps = max(count - 1, 1)
    return Sequences(length, tuple(longest + 1 + index * room // gaps for index in range(count)), scored, (scored,))


def spread(among: int, count: int) -> list[int]:
    """`count` of the numbers 0 ... among - 1, evenly spaced from the first to the last."""
    return [index * (among - 1) // max(count - 1, 1) for index in range(count)]


def position_buckets(length: int, training_length: int) -> tuple[int, ...]:
    """Ends (from 1) of at most 64 buckets of the positions 1 ... length, wider and wider; one ends at the training length."""
    ends = {round(length ** (index / (MOST_BUCKETS - 2))) for index in range(MOST_BUCKETS - 1)}
    return tuple(sorted(ends | {min(training_length, length)}))


def mean_loss(scored: Scored) -> Record:
    """The mean over all tokens that count; `stderr` is its standard error over the windows (None for a single one)."""
    weights = np.concatenate([np.full(len(part.ends), part.scored) for part, _ in scored])  # [windows]
    means = np.concatenate([losses @ part.widths / part.scored for part, losses in scored])  # [windows]
    loss, stderr = weighted_mean(means, weights)
    return {
        "sequences": len(weights),
        "scored_tokens": int(weights.sum()),
        "loss": loss,
        "perplexity": math.inf if loss > 700 else math.exp(loss),
        "stderr": stderr,
    }


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> tuple[float, float | None]:
    """The mean of values [n] and its standard error (with equal weights that of a mean; None for a single value)."""
    count, total = len(values), weights.sum()
    mean = float(values @ weights / total)
    if count == 1:
        return mean, None
    return mean, float(np.sqrt(np.sum((weights * (values - mean)) ** 2) * count / (count - 1)) / total)


def information_gain(scored: Scored) -> Record:
    """The loss behind the training length's context less that behind the whole sequence; `stderr` is the gain's, window by window."""
    (whole, long), (_, short) = scored
    gain, stderr = weighted_mean((short - long)[:, 0], np.ones(len(whole.ends)))
    record = mean_loss(scored[:1])
    return {**record, "stderr": stderr, "gain": gain, "loss_short": record["loss"] + gain}


def loss_by_position(scored: Scored) -> Record:
    """The mean, and the means of the buckets of positions with their standard errors over the windows."""
    ((part, losses),) = scored
    alike = np.ones(len(part.ends))
    buckets = [weighted_mean(values, alike) for values in losses.T]
    by_position = {"losses": [mean for mean, _ in buckets], "stderrs": [stderr for _, stderr in buckets]}
    return {**mean_loss(scored), "positions": list(part.bucket_ends), **by_position}


PROTOCOLS = {
    "last": Protocol(last_tokens, mean_loss),
    "non_overlapping": Protocol(non_overlapping, mean_loss),
    "sliding": Protocol(sliding_window, mean_loss),
    "information_gain": Protocol(gain_of_context, information_gain),
    "position_wise": Protocol(non_overlapping, loss_by_position),
}
