"""Files that appear under their name only when they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from megatron.data.errors import DataError


class _Output:
    """A binary file whose errors name the file that it is going to be."""

    def __init__(self, path: Path):
        self.path = path
        self.temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with self._naming():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(self.temporary, "wb")

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error.strerror or error}") from error

    def write(self, data: bytes | memoryview) -> None:
        with self._naming():
            self._file.write(data)

    def finish(self) -> None:
        with self._naming():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def publish(self) -> None:
        with self._naming():
            os.replace(self.temporary, self.path)

    def discard(self) -> None:
        with suppress(OSError):  # closing writes what is buffered, which is what may have failed
            self._file.close()
        self.temporary.unlink(missing_ok=True)


@contextmanager
def atomic_outputs(*paths: str | Path) -> Iterator[tuple[_Output, ...]]:
    """Opens binary files for writing under temporary names beside `paths`, whose folders it makes.

    When the block ends well, all of them are written to the disk and then renamed, in the order given; where there are several, a previous
    file under the last name is removed first, so that a reader who starts there never sees a mixture of old and new. When the block does
    not end well, nothing of them is left.
    Raises DataError, naming the file, when the disk refuses.
    """
    outputs: list[_Output] = []
    try:
        for path in paths:
            outputs.append(_Output(Path(path)))
        yield tuple(outputs)
        for output in outputs:
            output.finish()
        if len(outputs) > 1:
            outputs[-1].path.unlink(missing_ok=True)
        for output in outputs:
            output.publish()
    finally:
        for output in outputs:
            output.discard()
