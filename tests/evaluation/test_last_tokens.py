"""The last-tokens protocol on a tiny counting model whose losses are known by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from megatron.errors import UserError
from megatron.evaluation.last_tokens import Interrupted, Places, choose_places, evaluate_lengths
from megatron.parallel.distributed import Processes
from megatron.positional.sampling import PositionSampling


class Text:
    """Token i of the text is i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def slice(self, start, stop):
        assert 0 <= start < stop <= self.length
        return np.arange(start, stop)


class Known(nn.Module):
    """Loss of predicting token t behind a context of n tokens in all: t + 1/n; remembers what it saw."""

    def forward(self, tokens, labels, position_ids, last):
        assert not self.training and position_ids is None and labels.shape[1] == last
        assert torch.equal(labels[:, :-1], tokens[:, tokens.shape[1] - last + 1 :])  # labels are the inputs, shifted by one
        return labels.float() + 1 / tokens.shape[1]


ALONE = Processes(0, 1, torch.device("cpu"))


def test_the_same_tokens_are_scored_at_every_length_and_losses_are_the_known_ones():
    places = choose_places(40, [4, 8, 16], sequences=3, last=256, what="text")
    assert places.scored == 4 and places.ends[0] == 17 and places.ends[-1] == 40
    results = evaluate_lengths(Known().train(), Text(40), places, [4, 8, 16], ALONE, tokens_per_batch=16)
    means = [np.mean(np.arange(end - 4, end)) for end in places.ends]
    for result in results:
        assert result.loss == pytest.approx(np.mean(means) + 1 / result.eval_length, rel=1e-6)
        assert result.stderr == pytest.approx(np.std(means, ddof=1) / math.sqrt(3), rel=1e-6)
        assert result.scored_tokens == 12
        assert result.perplexity == pytest.approx(math.exp(result.loss))


def test_batch_size_does_not_matter_and_training_mode_comes_back():
    model, places = Known().train(), choose_places(100, [8], sequences=7, last=4, what="text")
    one, many = (evaluate_lengths(model, Text(100), places, [8], ALONE, tokens_per_batch=n)[0] for n in (1, 1000))
    assert one == many and model.training


def test_an_interrupted_evaluation_stops_between_batches():
    model, places = Known().train(), choose_places(100, [8], sequences=7, last=4, what="text")
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        evaluate_lengths(model, Text(100), places, [8], ALONE, 8, interrupted=lambda: next(answers))
    assert model.training and next(answers, None) is None


def test_no_token_is_scored_twice_in_a_short_text():
    places = choose_places(30, [8, 16], sequences=100, last=256, what="text")
    assert places == Places((17, 30), 8)
    assert min(np.diff(places.ends)) >= places.scored


def test_text_exactly_long_enough_gives_one_sequence_without_a_standard_error():
    places = choose_places(17, [16], sequences=5, last=4, what="text")
    assert places == Places((17,), 4)
    assert math.isnan(evaluate_lengths(Known(), Text(17), places, [16], ALONE, 16)[0].stderr)


def test_text_too_short_says_by_how_much():
    with pytest.raises(UserError, match=r"the valid split has 16 tokens.*16 \+ 1"):
        choose_places(16, [4, 16], sequences=5, last=4, what="the valid split")


class Drawn(nn.Module):
    """Takes down the positions that each sequence gets, by its length and its last token."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, tokens, labels, position_ids, last):
        self.seen |= {(len(row), int(row[-1])): places.tolist() for row, places in zip(tokens, position_ids, strict=True)}
        return labels.float()


class Share(Processes):
    """One of several processes that does not wait for the others."""

    def gather(self, value):
        return [value] * self.world_size


def test_drawn_positions_depend_on_the_sequence_and_the_length_alone():
    places, sampling = choose_places(100, [4, 8], sequences=5, last=4, what="text"), PositionSampling(50, 7)

    def seen(processes: int, tokens_per_batch: int, sampling=sampling) -> dict[tuple[int, int], list[int]]:
        model = Drawn()
        for rank in range(processes):
            share = Share(rank, processes, torch.device("cpu"))
            evaluate_lengths(model, Text(100), places, [4, 8], share, tokens_per_batch, sampling=sampling)
        return model.seen

    alone = seen(1, 8)
    assert len(alone) == 10 and all(len(drawn) == length and drawn == sorted(set(drawn)) for (length, _), drawn in alone.items())
    assert len({tuple(drawn) for drawn in alone.values()}) == 10
    assert seen(1, 1000) == seen(2, 8) == seen(3, 16) == alone
    assert seen(1, 8, PositionSampling(50, 8)) != alone
