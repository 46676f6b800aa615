"""Splits and mixtures."""

import numpy as np
import pytest

from megatron.data.errors import DataError
from megatron.data.mixture import InterleavedStream, Mixture, document_weights, schedule, whole_shares
from megatron.data.split import parse_split, split_documents
from megatron.data.windows import TokenStream, Windows, contiguous


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("969, 30, 1", (0.969, 0.03, 0.001)),
        ("969,30,1", (0.969, 0.03, 0.001)),
        ("0.9/0.1", (0.9, 0.1, 0.0)),
        ("8/1/1", (0.8, 0.1, 0.1)),
        ("1", (1.0, 0.0, 0.0)),
        ("0, 1", (0.0, 1.0, 0.0)),
    ],
)
def test_shares(split, shares):
    assert parse_split(split) == pytest.approx(shares)


@pytest.mark.parametrize("split", ["", "a,b", "1,2,3,4", "0,0,0", "-1,2", "nan", "inf,1", "1;2", "0.9/0.1,1"])
def test_bad_splits_are_refused(split):
    with pytest.raises(DataError, match="split"):
        parse_split(split)


@pytest.mark.parametrize(
    ("documents", "split", "sizes"),
    [
        (1000, "969,30,1", (969, 30, 1)),
        (100, "969,30,1", (97, 3, 0)),
        (10, "1,1,1", (4, 3, 3)),
        (0, "969,30,1", (0, 0, 0)),
        (7, "1", (7, 0, 0)),
    ],
)
def test_split_sizes(documents, split, sizes):
    parts = split_documents(documents, split)
    assert tuple(map(len, parts)) == sizes


@pytest.mark.parametrize("split", ["969,30,1", "1,1,1", "0.5/0.5", "0,3,3", "2,1,7"])
def test_splits_cover_everything_once_and_follow_gpt_neox(split):
    for documents in range(200):
        parts = split_documents(documents, split)
        assert [i for part in parts for i in part] == list(range(documents))
        bounds = [0]
        for share in parse_split(split):
            bounds.append(bounds[-1] + int(round(share * documents)))
        shift = bounds[-1] - documents
        assert (parts[0].stop, parts[1].stop) == tuple(min(max(bound - shift, 0), documents) for bound in bounds[1:3])


@pytest.mark.parametrize(
    "weights",
    [
        [1.0],
        [0.5, 0.5],
        [0.1, 0.2, 0.7],
        [1, 2, 3, 4],
        [1e-3, 0.999],
        [0.3, 0.3, 0.3, 0.05, 0.05],
        [123457.0, 999983.0, 31.0],
        list(range(1, 25)),
    ],
)
def test_shares_of_every_beginning_are_off_by_less_than_one_sample(weights):
    parts = whole_shares(weights)
    turns = schedule(parts)
    assert np.bincount(turns, minlength=len(parts)).tolist() == parts
    for source, share in enumerate(parts):
        drawn = np.cumsum(turns == source)
        due = np.arange(1, len(turns) + 1) * share / len(turns)
        assert np.abs(drawn - due).max() < 1
    np.testing.assert_allclose(np.array(parts) / sum(parts), np.array(weights) / sum(weights), atol=3e-5)


def test_weights_as_people_write_them_are_exact():
    assert whole_shares([0.1, 0.2, 0.7]) == [1, 2, 7]
    assert whole_shares([30, 10]) == [3, 1]
    assert whole_shares([0.0, 2.5]) == [0, 1]
    assert min(whole_shares([1, 12345678901])) == 1  # a small source is never left out


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        whole_shares(weights)


def test_a_mixture_visits_every_sources_windows_in_turn(numbered):
    sources = [Windows(numbered(name, [50]), range(1), 4, seed=0) for name in "abc"]
    mixture = Mixture(sources, [0.5, 0.3, 0.2])
    located = [mixture.locate(k) for k in range(1000)]
    for source, share in enumerate([500, 300, 200]):
        assert [window for which, window in located if which == source] == list(range(share))
    source, window = mixture.locate(10**9)
    np.testing.assert_array_equal(mixture[10**9], sources[source][window])
    with pytest.raises(IndexError):
        mixture[-1]


def test_weights_by_number_of_documents():
    assert document_weights([30, 10], 1.0) == pytest.approx([0.75, 0.25])
    assert document_weights([100, 1], 0.5) == pytest.approx([10 / 11, 1 / 11])
    assert document_weights([100, 1], 0.0) == pytest.approx([0.5, 0.5])
    assert document_weights([100, 0], 0.0) == pytest.approx([1, 0])


def test_interleaved_streams_hold_all_and_any_beginning_is_mixed(numbered):
    small, large = (contiguous(source, range(source.documents)) for source in (numbered("a", [10] * 10), numbered("b", [20] * 45)))
    mixed = InterleavedStream([small, large])
    tokens = mixed.slice(0, len(mixed))
    assert sorted(tokens.tolist()) == sorted([*range(100), *range(900)])
    for cut in (200, 500, 800):
        owners = [mixed.streams[int(owner)] is small for owner, end in zip(mixed._owner, mixed._ends, strict=True) if end <= cut]
        assert 0 < sum(owners) * 10 <= 0.1 * cut + 20
    for start, stop in [(0, 0), (3, 17), (95, 300), (990, 1000), (0, 1000)]:
        np.testing.assert_array_equal(mixed.slice(start, stop), tokens[start:stop])
    with pytest.raises(IndexError):
        mixed.slice(0, 1001)


def test_interleaved_streams_with_weights_end_where_one_is_used_up(numbered):
    streams = [TokenStream(source, range(source.documents)) for source in (numbered("a", [10] * 10), numbered("b", [10] * 90))]
    mixed = InterleavedStream(streams, [1.0, 1.0])
    assert len(mixed) == 200 and len(InterleavedStream(streams, [0.0, 1.0])) == 900
