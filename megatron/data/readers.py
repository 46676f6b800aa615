"""Records out of text corpora: JSON lines, and the archives that `lm_dataformat` writes, one after another and never whole in memory."""

import codecs
import gzip
import io
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from megatron.data.errors import DataError

SUFFIXES = (".jsonl", ".json", ".txt", ".dat", ".tar", ".zip", ".tgz", ".gz", ".xz", ".zst")
NUMBER = "a number"
KINDS = {type(None): "null", bool: "true or false", int: NUMBER, float: NUMBER, str: "a string", list: "an array", dict: "an object"}
PARAGRAPHS = "\n\n"  # between the strings of a document that is a list of them
DAT_HEADER = 16  # decimal digits before each text of a .dat: its bytes


class Record(NamedTuple):
    """Where it stands ("file:line"), and an undecoded JSON line (bytes) or a value that needs no decoding (a text, mostly)."""

    where: str
    content: Any


class CorpusReader:
    """All records of several files, in order, and how far reading has got.

    A name tells the format: .jsonl, .json (lines, or one array), .txt (one document), .dat (`lm_dataformat`), each also with .gz, .xz or
    .zst behind it; .tar (also compressed) and .zip of such files, where a member of another name is a text.
    Raises DataError, with file and line, for what is missing, empty, a folder, of an unknown kind, truncated or damaged.
    """

    def __init__(self, paths: Sequence[str | Path]):
        self.paths = [Path(path) for path in paths]
        for path in self.paths:
            if path.is_dir():
                raise DataError(f"{path}: is a folder; name the files in it")
            if not path.is_file():
                raise DataError(f"{path}: no such file")
            if path.stat().st_size == 0:
                raise DataError(f"{path}: the file is empty")
            if not path.name.endswith(SUFFIXES):
                raise DataError(f"{path}: cannot tell the format from the name; it should end in one of {', '.join(SUFFIXES)}")
        self.total_bytes = sum(path.stat().st_size for path in self.paths)
        self._finished_bytes = 0
        self._file: BinaryIO | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes of the files as they lie on disk, compressed ones compressed."""
        return self._finished_bytes + (self._file.tell() if self._file else 0)

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            last = None
            try:
                with open(path, "rb") as self._file:
                    for last in _records(str(path), path.name, self._file):
                        yield last
                    self._finished_bytes += self._file.tell()
                    self._file = None
            except (EOFError, OSError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error, _zstd_error()) as error:
                place = f"after {last.where}" if last else "from its start"
                raise DataError(f"{path}: truncated or damaged, cannot be read {place}: {error}") from error
            if last is None:
                raise DataError(f"{path}: holds no documents")


def parse_record(record: Record, keys: Sequence[str]) -> list[str]:
    """The texts of a record, one per key. Raises DataError, with file and line, for everything that is not a JSON object of such texts."""
    where, value = record
    if isinstance(value, bytes):
        value = _decode_line(where, value)
    if isinstance(value, str) and len(keys) == 1:
        return [_checked(where, value)]
    if not isinstance(value, dict):
        raise DataError(f"{where}: {_kind(value)}, not a JSON object with {' and '.join(map(repr, keys))}")
    texts = []
    for key in keys:
        if key not in value:
            has = ", ".join(map(repr, value)) or "nothing"
            raise DataError(f"{where}: the object has no {key!r}, only {has[:200]}; see --jsonl-keys")
        text = value[key]
        if isinstance(text, list) and all(isinstance(part, str) for part in text):
            text = PARAGRAPHS.join(text)
        if not isinstance(text, str):
            raise DataError(f"{where}: {key!r} is {_kind(text)}, not a text")
        texts.append(_checked(where, text))
    return texts


def _decode_line(where: str, line: bytes) -> Any:
    """One JSON line. A carriage return before the newline is fine; blank lines are not."""
    text = _utf8(where, line)
    if not text.strip():
        raise DataError(f"{where}: blank line; every line must be a JSON object")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise DataError(f"{where}: more than one JSON value on the line, the second at column {error.colno}") from error
        cut = "" if line.endswith(b"\n") else "; the line has no end, so the file may be truncated"
        raise DataError(f"{where}: not valid JSON at column {error.colno}: {error.msg}{cut}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: JSON that cannot be read: {error}") from error


def _utf8(where: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid UTF-8: byte 0x{data[error.start]:02x} at position {error.start + 1}") from error


def _checked(where: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text holds half a surrogate pair, \\u{ord(text[error.start]):04x}, which is no character") from error
    return text


def _kind(value: Any) -> str:
    return KINDS[type(value)]


def _records(where: str, name: str, stream: BinaryIO, member: bool = False) -> Iterator[Record]:
    """The records of a stream whose format `name` tells; endings are peeled off from the right."""
    stem, _, suffix = name.rpartition(".")
    match suffix:
        case "zst":
            yield from _records(where, stem, io.BufferedReader(_ZstdStream(stream)), member)
        case "gz":
            yield from _records(where, stem, gzip.GzipFile(fileobj=stream), member)
        case "tgz":
            yield from _records(where, f"{stem}.tar", gzip.GzipFile(fileobj=stream), member)
        case "xz":
            yield from _records(where, f"{stem}.tar" if stem.endswith("_data") else stem, lzma.LZMAFile(stream), member)  # OpenWebText
        case "tar":
            yield from _tar(where, stream)
        case "zip":
            yield from _zip(where, stream)
        case "jsonl":
            yield from _lines(where, io.BufferedReader(_WithoutMark(stream)))
        case "json":
            yield from _json(where, io.BufferedReader(_WithoutMark(stream)))
        case "dat":
            yield from _dat(where, stream)
        case _:
            if not member and suffix != "txt":
                raise DataError(f"{where}: cannot tell the format inside; the name should be like x.jsonl.zst or x.txt.gz")
            yield Record(where, _utf8(where, stream.read()).removeprefix("\ufeff"))


def _lines(where: str, stream: io.BufferedReader) -> Iterator[Record]:
    for number, line in enumerate(stream, start=1):
        yield Record(f"{where}:{number}", line)


def _json(where: str, stream: io.BufferedReader) -> Iterator[Record]:
    """Megatron's .json has one object a line; lm_dataformat's is one array."""
    if not stream.peek().lstrip().startswith(b"["):
        yield from _lines(where, stream)
        return
    for number, value in enumerate(_decode_line(where, stream.read()), start=1):
        yield Record(f"{where}: entry {number}", value)


def _dat(where: str, stream: BinaryIO) -> Iterator[Record]:
    number = 0
    while header := stream.read(DAT_HEADER):
        number += 1
        if len(header) < DAT_HEADER or not header.isdigit():
            raise DataError(f"{where}: text {number} does not start with its length in {DAT_HEADER} digits")
        text = stream.read(int(header))
        if len(text) < int(header):
            raise EOFError(f"text {number} should have {int(header)} bytes and has {len(text)}")
        yield Record(f"{where}: text {number}", _utf8(f"{where}: text {number}", text))


def _tar(where: str, stream: BinaryIO) -> Iterator[Record]:
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for entry in archive:
            if entry.isfile() and (file := archive.extractfile(entry)):
                yield from _records(f"{where}/{entry.name}", entry.name, file, member=True)


def _zip(where: str, stream: BinaryIO) -> Iterator[Record]:
    with zipfile.ZipFile(stream) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                with archive.open(entry) as file:
                    yield from _records(f"{where}/{entry.filename}", entry.filename, file, member=True)


class _WithoutMark(io.RawIOBase):
    """A stream without the byte order mark at its start."""

    def __init__(self, stream: BinaryIO):
        self._stream, self._start = stream, stream.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        data = self._start + self._stream.read(len(buffer) - len(self._start))
        self._start = b""
        buffer[: len(data)] = data
        return len(data)


class _ZstdStream(io.RawIOBase):
    """Decompressed zstandard frames. Unlike zstandard's own reader, it notices when the last frame is cut off."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._frame = None
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._output:
            self._input = self._input or self._stream.read(io.DEFAULT_BUFFER_SIZE)
            if not self._input:
                if self._frame:
                    raise EOFError("it ends within a zstandard frame")
                return 0
            self._frame = self._frame or _zstandard().ZstdDecompressor().decompressobj()
            self._output = self._frame.decompress(self._input)
            self._input = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        taken, self._output = self._output[: len(buffer)], self._output[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _zstandard() -> Any:
    import zstandard  # only .zst needs it

    return zstandard


def _zstd_error() -> type[Exception]:
    return _zstandard().ZstdError
