"""From the configuration's keys to training samples and evaluation streams."""

import numpy as np
import pytest

from megatron.config.base import ConfigError
from megatron.config.data import DataConfig
from megatron.data.build import build_data
from megatron.data.errors import DataError
from megatron.data.mixture import Mixture


@pytest.fixture
def files(numbered, tmp_path):
    for name, documents in (("a", 100), ("b", 50), ("short", 1)):
        numbered(name, [10] * documents)
    numbered("empty", [])
    return {name: str(tmp_path / name) for name in ("a", "b", "short", "empty")}


def test_one_file_cut_by_split(files):
    data = build_data(DataConfig(data_path=files["a"], split="8,1,1"), 16, 1)
    assert {int(token) for k in range(200) for token in data.train[k]} <= set(range(800))
    assert data.train[0].shape == (17,)
    assert data.valid.slice(0, len(data.valid)).tolist() == list(range(800, 900))
    assert data.test.slice(0, len(data.test)).tolist() == list(range(900, 1000))
    assert data.describe() == "data: train 800 tokens (49 windows an epoch), valid 100 tokens, test 100 tokens"


def test_weights_and_prefixes(files):
    data = build_data(DataConfig(data_path=[0.25, files["a"], 0.75, files["b"]], split="8,1,1"), 16, 1)
    assert [data.train.locate(k)[0] for k in range(400)].count(0) == 100
    assert len(data.valid) == pytest.approx(50 / 0.75, abs=10)


def test_prefixes_without_weights_are_mixed_by_tokens(files):
    for config in (DataConfig(data_path=[files["a"], files["b"]], split="1"), DataConfig(train_data_paths=[files["a"], files["b"]])):
        data = build_data(config, 16, 1)
        assert isinstance(data.train, Mixture) and data.valid is None and data.test is None
        assert [data.train.locate(k)[0] for k in range(300)].count(0) == 200


def test_separate_files_for_each_split(files):
    config = DataConfig(
        train_data_paths=[files["a"], files["b"]],
        train_data_weights=[1.0, 3.0],
        valid_data_paths=[files["b"]],
        test_data_paths=[files["a"]],
    )
    data = build_data(config, 16, 1)
    assert [data.train.locate(k)[0] for k in range(400)].count(0) == 100
    assert (len(data.valid), len(data.test)) == (500, 1000)


def test_weights_from_document_counts(files):
    config = DataConfig(train_data_paths=[files["a"], files["b"]], weight_by_num_documents=True, weighted_sampler_alpha=0.0)
    data = build_data(config, 16, 1)
    assert [data.train.locate(k)[0] for k in range(100)].count(0) == 50


def test_a_source_of_weight_zero_is_not_read(files):
    data = build_data(DataConfig(train_data_paths=[files["a"], files["short"]], train_data_weights=[1.0, 0.0]), 16, 1)
    assert data.train[0].shape == (17,)


def test_the_same_seed_gives_the_same_samples(files):
    config = DataConfig(data_path=[0.5, files["a"], 0.5, files["b"]], split="1", mmap_warmup=True)
    one, two, other = (build_data(config, 16, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one.train[k], two.train[k]) for k in range(50))
    assert any(not np.array_equal(one.train[k], other.train[k]) for k in range(50))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no data: set data_path, or train_data_paths"),
        ({"data_path": "{a}", "valid_data_paths": ["{b}"]}, "data_path, .* and valid_data_paths, .* exclude each other"),
        ({"data_path": []}, "data_path: the list is empty"),
        ({"data_path": [0.5, "{a}", "{b}"]}, "data_path: .* is neither"),
        ({"data_path": [-1, "{a}", 2, "{b}"]}, "data_path: weights must be"),
        ({"train_data_paths": ["{a}"], "train_data_weights": [1.0, 2.0]}, "train_data_weights has 2 entries, train_data_paths has 1"),
        ({"train_data_paths": ["{a}"], "train_data_weights": [0.0]}, "train_data_weights: weights must be"),
        ({"train_data_paths": ["{a}"], "train_data_weights": [1.0], "weight_by_num_documents": True}, "exclude each other"),
    ],
)
def test_keys_that_contradict_each_other(files, keys, message):
    def fill(value):
        if isinstance(value, list):
            return [fill(entry) for entry in value]
        return value.format(**files) if isinstance(value, str) else value

    with pytest.raises(ConfigError, match=message):
        build_data(DataConfig(**{key: fill(value) for key, value in keys.items()}), 16, 1)


def test_data_that_cannot_be_used(files):
    with pytest.raises(DataError, match=r"short.bin: 1 documents with 10 tokens are less than one window of 16 \+ 1"):
        build_data(DataConfig(data_path=files["short"], split="1"), 16, 1)
    with pytest.raises(DataError, match='the training split is empty: split "1" leaves it no tokens of .*empty'):
        build_data(DataConfig(data_path=files["empty"], split="1"), 16, 1)
    with pytest.raises(DataError, match='validation split is empty: split "1" leaves it no tokens of .*a .100 documents'):
        build_data(DataConfig(data_path=files["a"], split="1"), 16, 1, require_validation=True)
    with pytest.raises(DataError, match="validation split is empty: valid_data_paths is None"):
        build_data(DataConfig(train_data_paths=[files["a"]]), 16, 1, require_validation=True)
    with pytest.raises(DataError, match="holds the token id"):
        build_data(DataConfig(data_path=files["a"], split="1"), 512, 1, vocab_size=300).train[0]


def test_evaluation_needs_no_training_data(files):
    data = build_data(DataConfig(test_data_paths=[files["a"]]), 16, 1, require_train=False)
    assert data.train is None and len(data.test) == 1000
