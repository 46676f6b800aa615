"""Token files: Megatron's `.bin`/`.idx` pairs ("MMIDIDX", version 1), read through memory maps and written atomically."""

import struct
from array import array
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from megatron.data.atomic import atomic_outputs
from megatron.data.errors import DataError

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type code, number of sequences, length of the document index
DTYPES = {
    code: np.dtype(name).newbyteorder("<")
    for code, name in {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}.items()
}
BLOCK = 1 << 22  # entries looked at or copied in one go


def token_dtype(vocab_size: int) -> np.dtype:
    """The type in which GPT-NeoX and Megatron store the ids of a vocabulary."""
    return np.dtype("<u2") if vocab_size < 65_500 else np.dtype("<i4")


class TokenFile:
    """The documents of `PREFIX.bin`/`PREFIX.idx`. Nothing is read but what is asked for.

    Raises DataError, naming the file and the numbers, when the pair is missing, damaged or of an unknown kind.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = str(prefix)
        self.index_path = Path(f"{prefix}.idx")
        self.token_path = Path(f"{prefix}.bin")
        index, sequences, entries = self._open_index()
        at = HEADER.size
        self.sequence_lengths = index[at : (at := at + 4 * sequences)].view("<i4")  # [sequences] tokens
        offsets = index[at : (at := at + 8 * sequences)].view("<i8")  # [sequences] bytes
        self.document_index = index[at : at + 8 * entries].view("<i8")  # [documents + 1] sequences
        self.total_tokens = self._check_lengths(offsets)
        self._check_document_index()
        self._tokens = self._open_tokens()  # [total_tokens]

    def __reduce__(self) -> tuple:
        return TokenFile, (self.prefix,)

    @property
    def documents(self) -> int:
        """How many documents there are, empty ones included."""
        return len(self.document_index) - 1

    @cached_property
    def document_starts(self) -> np.ndarray:
        """[documents + 1] int64: the token at which each document starts, and the number of tokens."""
        if np.array_equal(self.document_index, np.arange(len(self.sequence_lengths) + 1)):  # one sequence, one document: the usual case
            return _starts(self.sequence_lengths)
        return _starts(self.sequence_lengths)[self.document_index]

    @property
    def document_lengths(self) -> np.ndarray:
        """[documents] int64: tokens of each document, all its sequences together."""
        return np.diff(self.document_starts)

    def document(self, number: int) -> np.ndarray:
        """The token ids of one document, in the file's own type."""
        if not 0 <= number < self.documents:
            raise IndexError(f"{self.prefix} has documents 0 to {self.documents - 1}, not {number}")
        return self.tokens(int(self.document_starts[number]), int(self.document_starts[number + 1]))

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] token ids of the whole file as one stream, in the file's own type."""
        if not 0 <= start <= stop <= self.total_tokens:
            raise IndexError(f"{self.prefix} has tokens 0 to {self.total_tokens}, not {start} to {stop}")
        return self._tokens[start:stop]

    def warm_up(self) -> None:
        """Reads the token file once, so that the operating system has it in memory."""
        with open(self.token_path, "rb") as file:
            while file.read(BLOCK):
                pass

    def _open_index(self) -> tuple[np.ndarray, int, int]:
        path = self.index_path
        size = _size(path)
        if size < HEADER.size:
            raise DataError(f"{path}: {size} bytes are too few for a token index; its header alone has {HEADER.size}")
        index = np.memmap(path, dtype=np.uint8, mode="r")
        magic, version, code, sequences, entries = HEADER.unpack(index[: HEADER.size].tobytes())
        if magic != MAGIC:
            raise DataError(f"{path}: starts with {magic!r} instead of {MAGIC!r}; this is no memory-mapped token index")
        if version != VERSION:
            raise DataError(f"{path}: version {version} of the format; only {VERSION} is known")
        if code not in DTYPES:
            raise DataError(f"{path}: type code {code}; token ids are of a whole-number type: {', '.join(map(str, DTYPES))}")
        expected = HEADER.size + 12 * sequences + 8 * entries
        if size != expected:
            raise DataError(f"{path}: {size} bytes, but {sequences} sequences and {entries} document entries take {expected}")
        self.dtype = DTYPES[code]
        return index, sequences, entries

    def _check_lengths(self, offsets: np.ndarray) -> int:
        """Every length is at least zero and every offset is the sum of the lengths before it; returns the sum of all."""
        total = 0
        for first in range(0, len(offsets), BLOCK):
            lengths = self.sequence_lengths[first : first + BLOCK]
            if (negative := np.flatnonzero(lengths < 0)).size:
                at = int(negative[0])
                raise DataError(f"{self.index_path}: sequence {first + at} has the length {lengths[at]}")
            starts = _starts(lengths) + total
            wrong = np.flatnonzero(starts[:-1] * self.dtype.itemsize != offsets[first : first + BLOCK])
            if wrong.size:
                at = int(wrong[0])
                raise DataError(
                    f"{self.index_path}: sequence {first + at} is said to start at byte {offsets[first + at]} of {self.token_path.name}, "
                    f"but the lengths before it put it at byte {starts[at] * self.dtype.itemsize}"
                )
            total = int(starts[-1])
        return total

    def _check_document_index(self) -> None:
        index, sequences = self.document_index, len(self.sequence_lengths)
        if len(index) == 0 or index[0] != 0 or index[-1] != sequences:
            ends = f"{index[0]} to {index[-1]}" if len(index) else "nothing"
            raise DataError(f"{self.index_path}: the document index covers {ends}; it must cover sequences 0 to {sequences}")
        for first in range(0, len(index), BLOCK):
            part = index[first : first + BLOCK + 1]
            if (falling := np.flatnonzero(part[1:] < part[:-1])).size:
                at = int(falling[0])
                raise DataError(f"{self.index_path}: document {first + at} is said to go from sequence {part[at]} to {part[at + 1]}")

    def _open_tokens(self) -> np.ndarray:
        size, expected = _size(self.token_path), self.total_tokens * self.dtype.itemsize
        if size != expected:
            raise DataError(
                f"{self.token_path}: {size} bytes, but {self.index_path.name} says {self.total_tokens} tokens of {self.dtype.name}, "
                f"which take {expected}; copy or build the pair again"
            )
        return np.memmap(self.token_path, dtype=self.dtype, mode="r") if size else np.empty(0, self.dtype)


class TokenFileWriter:
    """Writes a token file, document after document; it appears under its name when the `with` block ends well, and not at all otherwise.

    Raises DataError when the disk refuses or when a token id does not fit `dtype`.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype | type | str):
        self.prefix = str(prefix)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._code = next((code for code, known in DTYPES.items() if known == self.dtype), None)
        if self._code is None:
            raise ValueError(f"token files do not hold {self.dtype}")
        self._lengths = array("i")
        self._documents = array("q", [0])
        self.total_tokens = 0

    def __enter__(self) -> "TokenFileWriter":
        self._stack = ExitStack()
        self._tokens, self._index = self._stack.enter_context(atomic_outputs(f"{self.prefix}.bin", f"{self.prefix}.idx"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)
            return
        with self._stack:
            self._write_index()

    @property
    def documents(self) -> int:
        """How many documents were written so far."""
        return len(self._documents) - 1

    def add_document(self, tokens: np.ndarray | list[int]) -> None:
        """A document of one sequence; it may be empty."""
        ids = np.asarray(tokens, dtype=np.int64)
        limits = np.iinfo(self.dtype)
        if ids.size and (ids.min() < limits.min or ids.max() > limits.max):
            raise DataError(f"{self.prefix}: token ids {ids.min()} to {ids.max()} do not fit {self.dtype.name}")
        self._tokens.write(ids.astype(self.dtype).tobytes())
        self._lengths.append(ids.size)
        self._documents.append(len(self._lengths))
        self.total_tokens += ids.size

    def add_file(self, source: TokenFile) -> None:
        """All documents of a token file of the same type, sequences and document index kept."""
        if source.dtype != self.dtype:
            raise DataError(f"{source.index_path}: its tokens are {source.dtype.name}, but those of {self.prefix} are {self.dtype.name}")
        for start in range(0, source.total_tokens, BLOCK):
            self._tokens.write(source.tokens(start, min(start + BLOCK, source.total_tokens)).tobytes())
        before = len(self._lengths)
        self._lengths.frombytes(source.sequence_lengths.astype(np.int32).tobytes())
        self._documents.frombytes((source.document_index[1:] + before).astype(np.int64).tobytes())
        self.total_tokens += source.total_tokens

    def _write_index(self) -> None:
        lengths = np.frombuffer(self._lengths, dtype=np.int32)
        self._index.write(HEADER.pack(MAGIC, VERSION, self._code, len(lengths), len(self._documents)))
        self._index.write(lengths.astype("<i4").tobytes())
        self._index.write((_starts(lengths)[:-1] * self.dtype.itemsize).astype("<i8").tobytes())
        self._index.write(np.frombuffer(self._documents, dtype=np.int64).astype("<i8").tobytes())


def _starts(lengths: np.ndarray) -> np.ndarray:
    """[n] lengths -> [n + 1] int64: where each starts when they lie end to end, and their sum."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=starts[1:])
    return starts


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            problem = "is a folder, not a token file" if path.is_dir() else "no such file; data paths are given without .bin or .idx"
            raise DataError(f"{path}: {problem}")
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
