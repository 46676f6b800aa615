"""Every protocol on a real tiny model, against losses computed token by token; and on a counting model, which windows it takes."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import nn

from megatron.errors import UserError
from megatron.evaluation.protocols import MOST_BUCKETS, Amount, make_plans, position_buckets
from megatron.evaluation.scoring import Interrupted, Scorer
from megatron.parallel.distributed import Processes
from megatron.positional.sampling import PositionSampling

ALONE = Processes(0, 1, torch.device("cpu"))
TRAINED = 8  # tokens


class Text:
    """Tokens as a stream; by default token i of the text is i."""

    def __init__(self, length, tokens=None):
        self.tokens = np.arange(length) if tokens is None else tokens

    def __len__(self):
        return len(self.tokens)

    def slice(self, start, stop):
        assert 0 <= start < stop <= len(self)
        return self.tokens[start:stop]


class Known(nn.Module):
    """Loss of predicting token t in a sequence of n tokens: t + 1/n; takes down the windows that it saw: (length, last token)."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, tokens, labels, position_ids, last):
        assert not self.training and position_ids is None and labels.shape[1] == last
        assert torch.equal(labels[:, :-1], tokens[:, tokens.shape[1] - last + 1 :])  # labels are the inputs, shifted by one
        self.seen += [(tokens.shape[1], int(row[-1])) for row in tokens]
        return labels.double() + 1 / tokens.shape[1]


def amount(*lengths, sequences=100, last=4, stride=3):
    return Amount(lengths, sequences, last, stride, TRAINED)


def plan_of(protocol, text, length, an_amount):
    return next(plan for plan in make_plans([protocol], text, an_amount, what="text") if plan.length == length)


def records(protocol, scorer, an_amount):
    return [plan.record(scorer) for plan in make_plans([protocol], len(scorer.stream), an_amount, what="text")]


# --- a real model, token by token


@pytest.fixture
def reference(make_model):
    """(model, text, loss): `loss(start, i)` is that of predicting token i of the text behind tokens start ... i - 1, from plain logits."""
    model = make_model(pos_emb="dape_kerple")
    text = np.random.default_rng(3).integers(0, 61, 60)

    @torch.no_grad()
    def loss(start, i):
        logits = model(torch.from_numpy(text[start:i])[None])[0, -1]
        return -logits.log_softmax(dim=-1)[text[i]].item()

    return model, Text(60, text), loss


def test_the_last_tokens_by_hand(reference):
    model, text, loss = reference
    for record in records("last", Scorer(model, text, ALONE, 64), amount(8, 24, sequences=3)):
        length = record["eval_length"]
        means = [np.mean([loss(end - 1 - length, i) for i in range(end - 4, end)]) for end in (25, 42, 60)]
        assert record["loss"] == pytest.approx(np.mean(means))
        assert record["stderr"] == pytest.approx(np.std(means, ddof=1) / math.sqrt(3))
        assert (record["sequences"], record["scored_tokens"]) == (3, 12)
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))


def test_non_overlapping_sequences_and_positions_by_hand(reference):
    model, text, loss = reference
    scorer = Scorer(model, text, ALONE, 64)
    for protocol in ("non_overlapping", "position_wise"):
        (record,) = records(protocol, scorer, amount(24))
        by_token = np.array([[loss(start, start + 1 + place) for place in range(24)] for start in (0, 24)])  # [windows, 24]
        assert record["loss"] == pytest.approx(by_token.mean())
        assert record["stderr"] == pytest.approx(by_token.mean(axis=1).std(ddof=1) / math.sqrt(2))
        assert (record["sequences"], record["scored_tokens"]) == (2, 48)
    starts = [0, *record["positions"][:-1]]
    assert record["positions"][-1] == 24 and TRAINED in record["positions"]
    for start, end, mean, stderr in zip(starts, record["positions"], record["losses"], record["stderrs"], strict=True):
        of_bucket = by_token[:, start:end].mean(axis=1)
        assert mean == pytest.approx(of_bucket.mean()) and stderr == pytest.approx(of_bucket.std(ddof=1) / math.sqrt(2))


def test_sliding_windows_by_hand(reference):
    model, text, loss = reference
    (record,) = records("sliding", Scorer(model, text, ALONE, 64), amount(16, stride=5))
    # windows 0-16, 5-21, ... 40-56: of the first all labels, then the five that are new
    windows = [[loss(0, i) for i in range(1, 17)], *([loss(end - 16, i) for i in range(end - 4, end + 1)] for end in range(21, 60, 5))]
    assert len(windows) == 9
    tokens = np.concatenate(windows)
    assert record["loss"] == pytest.approx(tokens.mean())
    shares = np.array([len(window) * (np.mean(window) - tokens.mean()) for window in windows])
    assert record["stderr"] == pytest.approx(math.sqrt((shares**2).sum() * 9 / 8) / len(tokens))
    assert (record["stride"], record["sequences"], record["scored_tokens"]) == (5, 9, 16 + 8 * 5)


def test_information_gain_by_hand(reference):
    model, text, loss = reference
    (record,) = records("information_gain", Scorer(model, text, ALONE, 64), amount(8, 24, sequences=3))  # none at the training length
    short, long = ([[loss(end - 1 - n, i) for i in range(end - 4, end)] for end in (25, 42, 60)] for n in (TRAINED, 24))
    gains = np.mean(short, axis=1) - np.mean(long, axis=1)
    assert record["eval_length"] == 24 and record["scored_tokens"] == 12
    assert (record["loss"], record["loss_short"]) == (pytest.approx(np.mean(long)), pytest.approx(np.mean(short)))
    assert record["gain"] == pytest.approx(gains.mean()) and record["stderr"] == pytest.approx(gains.std(ddof=1) / math.sqrt(3))


# --- which windows


def test_windows_that_protocols_share_are_scored_once():
    model = Known()
    scorer = Scorer(model, Text(100), ALONE, 64)
    protocols = ["last", "information_gain", "non_overlapping", "position_wise"]
    for plan in make_plans(protocols, 100, amount(8, 16, sequences=3), what="text"):
        plan.record(scorer)
    assert len(model.seen) == 3 + 3 + 6 + 3  # last at 8 and 16, sequences end to end of 8 and 16


@pytest.mark.parametrize("text", [17 + 10 * 16, 30 + 10 * 16])
def test_a_text_that_is_long_is_sampled_and_every_length_scores_the_same_tokens(text):
    for protocol, scored in (("last", 4 * 3), ("non_overlapping", 16 * 3), ("sliding", 3 * 3)):
        by_length = []
        for plan in make_plans([protocol], text, amount(8, 16, sequences=3), what="text"):
            labels = {end - 1 - back for part in plan.parts for end in part.ends for back in range(part.scored)}
            assert plan.record(Scorer(Known(), Text(text), ALONE, 64))["scored_tokens"] == len(labels) == scored
            by_length.append(labels)
        assert by_length[0] == by_length[1]
        assert max(by_length[0]) >= text - 16 and min(by_length[0]) <= 20  # from one end of the text to the other


def test_every_token_of_a_short_text_counts_once():
    for protocol in ("non_overlapping", "sliding"):
        (plan,) = make_plans([protocol], 50, amount(7), what="text")
        labels = sorted(end - 1 - back for part in plan.parts for end in part.ends for back in range(part.scored))
        assert labels == list(range(1, 50))


def test_no_token_is_scored_twice_by_the_last_tokens():
    (part,) = plan_of("last", 30, 16, amount(8, 16, last=256)).parts
    assert part.ends == (17, 30) and part.scored == 8


def test_one_window_has_no_standard_error():
    for protocol in ("last", "non_overlapping", "sliding", "information_gain"):
        (record,) = records(protocol, Scorer(Known(), Text(17), ALONE, 16), amount(16, stride=3))
        assert record["stderr"] is None and record["sequences"] == 1


def test_text_too_short_says_by_how_much():
    with pytest.raises(UserError, match=r"the valid split has 16 tokens.*16 \+ 1"):
        make_plans(["sliding"], 16, amount(4, 16), what="the valid split")


@pytest.mark.parametrize("length", [2, 8, 100, 512, 32768])
def test_buckets_of_positions(length):
    ends = position_buckets(length, 512)
    assert len(ends) <= MOST_BUCKETS and ends[-1] == length and list(ends) == sorted(set(ends)) and ends[0] == 1
    assert 512 in ends or length < 512


# --- batches, processes, signals


def together(count, work):
    """Results of work(processes) of `count` processes, each a thread here, by rank."""
    barrier, parts = Barrier(count), {}

    class Share(Processes):
        def gather(self, value):
            parts[self.rank] = value
            barrier.wait()
            gathered = [parts[rank] for rank in range(count)]
            barrier.wait()
            return gathered

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, [Share(rank, count, torch.device("cpu")) for rank in range(count)]))


@pytest.mark.parametrize("protocol", ["last", "non_overlapping", "sliding", "information_gain", "position_wise"])
def test_batches_and_processes_do_not_matter_and_training_mode_comes_back(protocol):
    asked, model = amount(8, 16, sequences=7), Known().train()
    alone = records(protocol, Scorer(model, Text(200), ALONE, 1), asked)
    assert records(protocol, Scorer(model, Text(200), ALONE, 1000), asked) == alone and model.training
    for found in together(3, lambda processes: records(protocol, Scorer(Known(), Text(200), processes, 16), asked)):
        assert found == alone


def test_an_interrupted_evaluation_stops_between_batches():
    model, answers = Known().train(), iter([False, False, True])
    scorer = Scorer(model, Text(100), ALONE, 8, interrupted=lambda: next(answers))
    with pytest.raises(Interrupted):
        records("last", scorer, amount(8, sequences=7))
    assert model.training and next(answers, None) is None


# --- drawn positions


class Drawn(nn.Module):
    """Takes down the positions that each sequence gets, by its length and its last token."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, tokens, labels, position_ids, last):
        self.seen |= {(len(row), int(row[-1])): places.tolist() for row, places in zip(tokens, position_ids, strict=True)}
        return labels.float()


def test_drawn_positions_depend_on_the_sequence_and_the_length_alone():
    def seen(tokens_per_batch, sampling):
        model = Drawn()
        records("last", Scorer(model, Text(100), ALONE, tokens_per_batch, sampling=sampling), amount(4, 8, sequences=5))
        return model.seen

    alone = seen(8, PositionSampling(50, 7))
    assert len(alone) == 10 and all(len(drawn) == length and drawn == sorted(set(drawn)) for (length, _), drawn in alone.items())
    assert len({tuple(drawn) for drawn in alone.values()}) == 10
    assert seen(1000, PositionSampling(50, 7)) == alone
    assert seen(8, PositionSampling(50, 8)) != alone
