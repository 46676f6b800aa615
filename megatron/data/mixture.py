"""Several sources mixed by weight."""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from megatron.data.windows import TokenStream, Windows

EXACT_PERIOD = 1_000_000  # weights with a common denominator up to this are kept exactly
ROUNDED_PERIOD = 100_000  # other shares are rounded to multiples of one in so many


class Mixture:
    """`mixture[k]` is a window of one of `sources`, for every k >= 0, a function of (weights, k) alone.

    Among the first k samples source i has k * share_i of them, give or take less than one, for every k and i. Shares are the weights
    divided by their sum, exactly where they have a small common denominator, otherwise rounded to multiples of 1e-5 and at least that.
    """

    def __init__(self, sources: Sequence[Windows], weights: Sequence[float]):
        self.sources = list(sources)
        self._parts = np.array(whole_shares(weights))  # [sources] samples of each in one period
        self._source = schedule(self._parts.tolist())  # [period] whose turn it is
        self._turn = np.empty(len(self._source), dtype=np.int64)  # [period] how many turns that source had before
        for source, parts in enumerate(self._parts):
            self._turn[self._source == source] = np.arange(parts)

    def locate(self, number: int) -> tuple[int, int]:
        """The source of a sample, and the number of its window there."""
        period, place = divmod(number, len(self._source))
        source = int(self._source[place])
        return source, int(period * self._parts[source] + self._turn[place])

    def __getitem__(self, number: int) -> np.ndarray:
        """[length + 1] int64: the sample with this number, counted through all epochs."""
        if number < 0:
            raise IndexError(f"samples are numbered from 0; there is no {number}")
        source, window = self.locate(number)
        return self.sources[source][window]


class InterleavedStream:
    """Evaluation streams mixed document by document, so that any beginning of the whole holds the sources in about their shares.

    Without `weights` all tokens are in it; with them it ends where the first source is used up.
    """

    def __init__(self, streams: Sequence[TokenStream], weights: Sequence[float] | None = None):
        self.streams = list(streams)
        shares = np.array([len(stream) for stream in streams] if weights is None else weights, dtype=np.float64)
        keep = np.flatnonzero(shares > 0)
        ends = [streams[i].document_ends for i in keep]  # per source [documents] token after each
        due = np.concatenate([end / shares[i] for i, end in zip(keep, ends, strict=True)])
        limit = min(end[-1] / shares[i] if len(end) else 0.0 for i, end in zip(keep, ends, strict=True))
        order = np.argsort(due, kind="stable")
        if weights is not None:
            order = order[due[order] <= limit]
        starts = [np.concatenate([[0], end[:-1]]) if len(end) else end for end in ends]
        self._owner = np.repeat(keep, [len(end) for end in ends])[order]  # [documents] stream
        self._start = np.concatenate(starts)[order]  # [documents] first token in that stream
        self._ends = np.cumsum(np.concatenate(ends)[order] - self._start)  # [documents] token after it in this one

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def slice(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] int64: tokens `start` to `stop` of the stream."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"the stream has tokens 0 to {len(self)}, not {start} to {stop}")
        pieces = [np.empty(0, dtype=np.int64)]
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            begin = int(self._ends[place - 1]) if place else 0
            end = min(int(self._ends[place]), stop)
            shift = int(self._start[place]) - begin
            pieces.append(self.streams[int(self._owner[place])].slice(start + shift, end + shift))
            start, place = end, place + 1
        return np.concatenate(pieces)


def document_weights(documents: Sequence[int], alpha: float) -> list[float]:
    """Shares from document counts: share_i ~ documents_i ** alpha. 1 is proportional; towards 0 small sources gain on large ones."""
    powers = [count**alpha if count else 0.0 for count in documents]
    return [power / sum(powers) for power in powers]


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers of samples in one period, the period as short as it can be."""
    if not weights or any(not 0 <= weight < math.inf for weight in weights) or sum(weights) <= 0:
        raise ValueError(f"weights must be finite, not negative and not all zero: {list(weights)}")
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= EXACT_PERIOD:
        return [int(share * period) for share in shares]
    parts = [max(1, int(share * ROUNDED_PERIOD)) if share else 0 for share in shares]
    missing = ROUNDED_PERIOD - sum(parts)
    by_remainder = sorted(range(len(shares)), key=lambda i: parts[i] - shares[i] * ROUNDED_PERIOD)
    for i in [i for i in by_remainder if parts[i]][: max(missing, 0)]:
        parts[i] += 1
    return parts


def schedule(parts: Sequence[int]) -> np.ndarray:
    """[period] source numbers, `parts[i]` times source i, such that every beginning of length k holds k * parts[i] / period of it,
    give or take less than one.

    Source i's turn j may come from floor(j * period / parts[i]) on and must come before ceil((j + 1) * period / parts[i]); taking
    the earliest deadline first always succeeds (proportionate fairness, Baruah et al. 1996).
    """
    period = sum(parts)
    turns = np.empty(period, dtype=np.int32)
    waiting = [(0, source, 0) for source, share in enumerate(parts) if share]  # (first place, source, turn)
    ready: list[tuple[int, int, int]] = []  # (deadline, source, turn)
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, source, turn = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(turn + 1) * period // parts[source]), source, turn))
        _, source, turn = heapq.heappop(ready)
        turns[place] = source
        if turn + 1 < parts[source]:
            heapq.heappush(waiting, ((turn + 1) * period // parts[source], source, turn + 1))
    return turns
