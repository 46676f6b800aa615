"""Windows and streams, against documents put end to end by hand."""

import pickle

import numpy as np
import pytest

from megatron.data.errors import DataError
from megatron.data.windows import TokenStream, Windows, contiguous

LENGTHS = [5, 0, 7, 1, 12, 3, 9, 0, 4]  # 41 tokens, numbered through


def test_a_stream_is_its_documents_end_to_end(numbered):
    source = numbered("x", LENGTHS)
    order = [4, 1, 0, 8, 7, 2]
    whole = np.concatenate([source.document(i) for i in order]).astype(np.int64)
    stream = TokenStream(source, order)
    assert len(stream) == len(whole) == 28
    for start in range(29):
        for stop in range(start, 29):
            np.testing.assert_array_equal(stream.slice(start, stop), whole[start:stop])
    assert stream.slice(0, 3).dtype == np.int64
    for start, stop in [(-1, 3), (0, 29), (5, 4)]:
        with pytest.raises(IndexError):
            stream.slice(start, stop)


def test_contiguous_keeps_the_order_of_the_file(numbered):
    stream = contiguous(numbered("x", LENGTHS), range(2, 6))
    assert stream.slice(0, len(stream)).tolist() == list(range(5, 28))
    assert len(contiguous(numbered("y", LENGTHS), range(0))) == 0


def test_an_epoch_predicts_every_token_once_but_the_first_and_the_tail(numbered):
    windows = Windows(numbered("x", LENGTHS), range(9), 6, seed=1)
    assert windows.windows_per_epoch == (41 - 1) // 6 == 6
    for epoch in range(3):
        samples = [windows[epoch * 6 + i] for i in range(6)]
        assert all(sample.shape == (7,) and sample.dtype == np.int64 for sample in samples)
        predicted = np.concatenate([sample[1:] for sample in samples])
        assert len(set(predicted.tolist())) == 36
        firsts, lasts = {int(sample[0]) for sample in samples}, {int(sample[-1]) for sample in samples}
        assert len(firsts & lasts) == 5  # each window but one begins where another ends


def test_windows_are_slices_of_shuffled_whole_documents(numbered):
    source = numbered("x", LENGTHS)
    windows = Windows(source, range(9), 40, seed=3)  # one window: the whole epoch
    seen = set()
    for epoch in range(5):
        tokens = windows[epoch].tolist()
        assert sorted(tokens) == list(range(41))
        jumps = [b for a, b in zip(tokens, tokens[1:], strict=False) if b != a + 1]
        assert set(jumps) <= set(np.concatenate([[0], np.cumsum(LENGTHS)]).tolist())
        seen.add(tuple(tokens))
    assert len(seen) > 1


def test_windows_are_a_function_of_number_and_seed_alone(numbered):
    source = numbered("x", [11] * 30)
    forward = [Windows(source, range(30), 8, seed=5)[k] for k in range(100)]
    windows = Windows(source, range(30), 8, seed=5)
    for k in reversed(range(100)):
        np.testing.assert_array_equal(windows[k], forward[k])
    other = [Windows(source, range(30), 8, seed=6)[k] for k in range(40)]
    assert any(not np.array_equal(a, b) for a, b in zip(forward, other, strict=False))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(windows))[77], forward[77])


def test_the_order_never_changes(numbered):
    """A run must be resumable years later: these windows were drawn once and written down."""
    windows = Windows(numbered("x", [4] * 6), range(6), 4, seed=1234)
    assert [windows[k].tolist() for k in (0, 1, 5, 10**6)] == ORDER_OF_SEED_1234


ORDER_OF_SEED_1234 = [[16, 17, 18, 19, 0], [12, 13, 14, 15, 8], [20, 21, 22, 23, 8], [0, 1, 2, 3, 4]]


def test_only_the_given_documents_are_drawn(numbered):
    windows = Windows(numbered("x", LENGTHS), range(2, 6), 5, seed=0)
    assert {int(token) for k in range(50) for token in windows[k]} == set(range(5, 28))


def test_less_than_a_window_is_refused_with_numbers(numbered):
    source = numbered("x", [3, 4])
    assert Windows(source, range(2), 6, seed=0).windows_per_epoch == 1
    with pytest.raises(DataError, match=r"x.bin: 2 documents with 7 tokens are less than one window of 7 \+ 1"):
        Windows(source, range(2), 7, seed=0)
    with pytest.raises(DataError, match=r"0 documents with 0 tokens"):
        Windows(source, range(0), 7, seed=0)


def test_ids_beyond_the_vocabulary_name_the_file(numbered):
    source = numbered("x", [20])
    assert Windows(source, range(1), 9, seed=0, vocab_size=20)[0].max() < 20
    with pytest.raises(DataError, match="x.bin: holds the token id 19, but the vocabulary has ids 0 to 18"):
        TokenStream(source, range(1), vocab_size=19).slice(0, 20)


def test_a_negative_number_is_no_window(numbered):
    with pytest.raises(IndexError):
        Windows(numbered("x", [20]), range(1), 9, seed=0)[-1]
