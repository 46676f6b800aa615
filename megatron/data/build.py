"""From the configuration's data keys to what training and evaluation read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron.config.base import ConfigError
from megatron.config.data import DataConfig
from megatron.data.errors import DataError
from megatron.data.mixture import InterleavedStream, Mixture, document_weights
from megatron.data.split import split_documents
from megatron.data.token_file import TokenFile
from megatron.data.windows import TokenStream, Windows, contiguous

EvaluationStream = TokenStream | InterleavedStream
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Data:
    """What a run reads.

    `train[k]` is training sample k, int64 [seq_length + 1], for every k >= 0; None only where no training data was required. `valid` and
    `test` are streams with a length in tokens and `slice(start, stop)` -> int64 [stop - start], None where that split is empty.
    """

    train: Windows | Mixture | None
    valid: EvaluationStream | None
    test: EvaluationStream | None

    def describe(self) -> str:
        """One line for the log."""
        parts = self.train.sources if isinstance(self.train, Mixture) else [self.train] if self.train else []
        tokens = sum(part.tokens for part in parts)
        windows = sum(part.windows_per_epoch for part in parts)
        valid, test = (len(stream) if stream else 0 for stream in (self.valid, self.test))
        return f"data: train {tokens:,} tokens ({windows:,} windows an epoch), valid {valid:,} tokens, test {test:,} tokens"


@dataclass(frozen=True)
class _Part:
    """The documents of one token file that belong to one split, and the weight that the user gave it."""

    source: TokenFile
    documents: range
    weight: float | None

    @property
    def tokens(self) -> int:
        starts = self.source.document_starts
        return int(starts[self.documents.stop] - starts[self.documents.start])


def build_data(
    config: DataConfig,
    seq_length: int,
    seed: int,
    *,
    vocab_size: int | None = None,
    require_train: bool = True,
    require_validation: bool = False,
) -> Data:
    """Opens the token files and lays out training samples and evaluation streams.

    Raises ConfigError when the keys contradict each other, DataError when a file is damaged, a training set holds less than one window,
    or a split is empty that is required. With `vocab_size`, a file with larger token ids is a DataError when they are read.
    """
    train, valid, test = _splits(config)
    if config.mmap_warmup:
        for source in {part.source.prefix: part.source for part in (*train, *valid, *test)}.values():
            source.warm_up()
    data = Data(
        train=_mixture(config, train, seq_length, seed, vocab_size) if require_train or train else None,
        valid=_stream(config, valid, vocab_size),
        test=_stream(config, test, vocab_size),
    )
    if require_validation and data.valid is None:
        raise DataError(f"the validation split is empty: {_origin(config, 'valid')}")
    return data


def _splits(config: DataConfig) -> tuple[list[_Part], list[_Part], list[_Part]]:
    """The parts of train, valid and test that have documents."""
    paths = {name: getattr(config, f"{name}_data_paths") for name in SPLITS}
    opened: dict[str, TokenFile] = {}

    def open_once(prefix: str) -> TokenFile:
        return opened.setdefault(prefix, opened.get(prefix) or TokenFile(prefix))

    parts: dict[str, list[_Part]] = {name: [] for name in SPLITS}
    if config.data_path is not None:
        if clashing := [f"{name}_data_paths" for name in SPLITS if paths[name]]:
            raise ConfigError(f"data_path, which is cut by split, and {', '.join(clashing)}, used whole, exclude each other; remove one")
        for prefix, weight in _weighted_prefixes(config.data_path):
            source = open_once(prefix)
            for name, documents in zip(SPLITS, split_documents(source.documents, config.split), strict=True):
                parts[name].append(_Part(source, documents, weight))
    elif not any(paths.values()):
        raise ConfigError("no data: set data_path, or train_data_paths, valid_data_paths and test_data_paths")
    for name in SPLITS:
        weights = getattr(config, f"{name}_data_weights")
        prefixes = paths[name] or []
        if weights is not None and len(weights) != len(prefixes):
            raise ConfigError(f"{name}_data_weights has {len(weights)} entries, {name}_data_paths has {len(prefixes)}")
        _check_weights(f"{name}_data_weights", weights)
        for prefix, weight in zip(prefixes, weights or [None] * len(prefixes), strict=True):
            source = open_once(prefix)
            parts[name].append(_Part(source, range(source.documents), weight))
    train, valid, test = ([part for part in parts[name] if part.tokens] for name in SPLITS)
    return train, valid, test


def _weighted_prefixes(data_path: str | Sequence[str | float | int]) -> list[tuple[str, float | None]]:
    """`data_path` as (prefix, weight) pairs: "a" -> a alone, [0.3, "a", 0.7, "b"] and ["a", "b"] as they stand."""
    if isinstance(data_path, str):
        return [(data_path, None)]
    if not data_path:
        raise ConfigError("data_path: the list is empty")
    if all(isinstance(entry, str) and not _is_number(entry) for entry in data_path):
        return [(str(prefix), None) for prefix in data_path]
    weights, prefixes = data_path[::2], data_path[1::2]
    if len(weights) != len(prefixes) or not all(map(_is_number, weights)) or not all(isinstance(prefix, str) for prefix in prefixes):
        raise ConfigError(f'data_path: {list(data_path)} is neither prefixes nor weights and prefixes in turn, as in [0.3, "a", 0.7, "b"]')
    numbers = [float(weight) for weight in weights]
    _check_weights("data_path", numbers)
    return [(str(prefix), weight) for prefix, weight in zip(prefixes, numbers, strict=True)]


def _is_number(entry: str | float | int) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _check_weights(key: str, weights: Sequence[float] | None) -> None:
    if weights is not None and (any(not 0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0):
        raise ConfigError(f"{key}: weights must be finite, not below zero and not all zero, but are {list(weights)}")


def _weights(config: DataConfig, parts: Sequence[_Part]) -> list[float] | None:
    """What the user asked for; None leaves it to the number of tokens."""
    given = [part.weight for part in parts]
    if config.weight_by_num_documents:
        if any(weight is not None for weight in given):
            raise ConfigError("weight_by_num_documents and weights of the data set exclude each other; remove one")
        return document_weights([len(part.documents) for part in parts], config.weighted_sampler_alpha)
    return None if any(weight is None for weight in given) else [float(weight) for weight in given]


def _mixture(config: DataConfig, parts: list[_Part], seq_length: int, seed: int, vocab_size: int | None) -> Windows | Mixture:
    weights = _weights(config, parts)
    if weights is not None:
        used = [i for i, weight in enumerate(weights) if weight > 0]
        parts, weights = [parts[i] for i in used], [weights[i] for i in used]
    if not parts:
        raise DataError(f"the training split is empty: {_origin(config, 'train')}")
    sources = [Windows(part.source, part.documents, seq_length, seed + number, vocab_size) for number, part in enumerate(parts)]
    return sources[0] if len(sources) == 1 else Mixture(sources, weights or [source.tokens for source in sources])


def _stream(config: DataConfig, parts: list[_Part], vocab_size: int | None) -> EvaluationStream | None:
    if not parts:
        return None
    streams = [contiguous(part.source, np.asarray(part.documents), vocab_size) for part in parts]
    if len(streams) == 1:
        return streams[0]
    stream = InterleavedStream(streams, _weights(config, parts))
    return stream if len(stream) else None


def _origin(config: DataConfig, name: str) -> str:
    if config.data_path is None:
        return f"{name}_data_paths is {getattr(config, f'{name}_data_paths')}; give it token files with at least one token"
    prefixes = ", ".join(prefix for prefix, _ in _weighted_prefixes(config.data_path))
    counts = ", ".join(f"{TokenFile(prefix).documents} documents" for prefix, _ in _weighted_prefixes(config.data_path))
    return f'split "{config.split}" leaves it no tokens of {prefixes} ({counts}); change split or use more data'
