"""From text corpora to token files, by several processes."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from megatron.config.tokenizer import TokenizerConfig
from megatron.data.errors import DataError
from megatron.data.readers import CorpusReader, Record, parse_record
from megatron.data.token_file import TokenFileWriter, token_dtype
from megatron.tokenizer import Tokenizer, build_tokenizer

BATCH_RECORDS, BATCH_BYTES = 256, 1 << 20  # handed to a process at once
BATCHES_PER_WORKER = 4  # read ahead


@dataclass(frozen=True)
class Job:
    """How texts become documents."""

    tokenizer: TokenizerConfig
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False


@dataclass(frozen=True)
class Progress:
    """What is written so far, and the share of the input files that is read (0 to 1)."""

    documents: int
    tokens: int
    text_bytes: int
    share: float


@dataclass(frozen=True)
class _Encoded:
    """A batch of documents: per key [tokens] ids and [documents] lengths."""

    ids: list[np.ndarray]
    lengths: list[np.ndarray]
    text_bytes: int


def output_prefixes(output_prefix: str | Path, keys: Sequence[str]) -> list[str]:
    """Where the documents of each key go: `<prefix>_<key>_document`, as GPT-NeoX names them."""
    return [f"{output_prefix}_{key}_document" for key in keys]


def preprocess(
    inputs: Sequence[str | Path],
    output_prefix: str | Path,
    job: Job,
    *,
    workers: int = 1,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Writes `<output_prefix>_<key>_document.bin/.idx` for every key; the same bytes with any number of workers.

    `report` is called at the start and after every batch. Raises DataError, with file and line, at the first record that is no good, and
    when `append_eod` asks for a token that the tokenizer does not have, inputs or keys are none, or a key is there twice; then nothing
    appears under the final names.
    """
    if not inputs or not job.keys:
        raise DataError(f"{'keys' if inputs else 'inputs'}: there are none; name at least one")
    if twice := [key for key, count in Counter(job.keys).items() if count > 1]:
        raise DataError(f"--jsonl-keys: {', '.join(twice)} is there more than once; each key has one token file, name it once")
    tokenizer = _tokenizer(job)
    reader = CorpusReader(inputs)
    progress = Progress(0, 0, 0, 0.0)
    report(progress)
    with ExitStack() as stack:
        dtype = token_dtype(tokenizer.vocab_size)
        writers = [stack.enter_context(TokenFileWriter(prefix, dtype)) for prefix in output_prefixes(output_prefix, job.keys)]
        for encoded in _encode_all(job, tokenizer, _batches(reader), workers):
            for writer, ids, lengths in zip(writers, encoded.ids, encoded.lengths, strict=True):
                for document in np.split(ids, np.cumsum(lengths)[:-1]):
                    writer.add_document(document)
            progress = Progress(
                documents=writers[0].documents,
                tokens=sum(writer.total_tokens for writer in writers),
                text_bytes=progress.text_bytes + encoded.text_bytes,
                share=reader.bytes_read / reader.total_bytes,
            )
            report(progress)
    return progress


def _tokenizer(job: Job) -> Tokenizer:
    tokenizer = build_tokenizer(job.tokenizer)
    if job.append_eod and tokenizer.eod is None:
        raise DataError(
            f"append_eod: {job.tokenizer.vocab_file or tokenizer.name} has no end-of-document token <|endoftext|>; "
            f"leave out --append-eod or use another tokenizer"
        )
    return tokenizer


def _batches(reader: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in reader:
        batch.append(record)
        size += len(record.content) if isinstance(record.content, bytes | str) else 0
        if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_worker_tokenizer = cache(_tokenizer)  # a worker process makes its tokenizer once


def _encode_in_worker(job: Job, batch: list[Record]) -> _Encoded:
    return _encode(job, _worker_tokenizer(job), batch)


def _encode(job: Job, tokenizer: Tokenizer, batch: list[Record]) -> _Encoded:
    end = [tokenizer.eod] if job.append_eod else []
    documents: list[list[list[int]]] = [[] for _ in job.keys]  # per key, per document, ids
    text_bytes = 0
    for record in batch:
        for of_key, text in zip(documents, parse_record(record, job.keys), strict=True):
            of_key.append(tokenizer.encode(text) + end)
            text_bytes += len(text.encode("utf-8"))
    return _Encoded(
        ids=[np.array([token for document in of_key for token in document], dtype=np.int32) for of_key in documents],
        lengths=[np.array([len(document) for document in of_key], dtype=np.int64) for of_key in documents],
        text_bytes=text_bytes,
    )


def _encode_all(job: Job, tokenizer: Tokenizer, batches: Iterable[list[Record]], workers: int) -> Iterator[_Encoded]:
    """Encodes batches in order, in this process or, a few ahead, in others."""
    if workers <= 1:
        yield from (_encode(job, tokenizer, batch) for batch in batches)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that has a tokenizer with threads is not safe
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    waiting: deque[tuple[Future[_Encoded], str]] = deque()
    where = ""
    try:
        for batch in batches:
            waiting.append((pool.submit(_encode_in_worker, job, batch), f"between {batch[0].where} and {batch[-1].where}"))
            if len(waiting) > BATCHES_PER_WORKER * workers:
                future, where = waiting.popleft()
                yield future.result()
        while waiting:
            future, where = waiting.popleft()
            yield future.result()
    except BrokenProcessPool as error:
        raise DataError(f"a worker process died (killed, or out of memory), perhaps {where}; try fewer --workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when the parent does, however that happened."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
