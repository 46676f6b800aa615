"""A corpus that every machine has: the sources of Python's standard library."""

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megatron.data.atomic import atomic_outputs
from megatron.data.errors import DataError

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}  # folders


@dataclass(frozen=True)
class StdlibCorpus:
    """What was written: documents, their bytes, and the files left out because they are not UTF-8 or empty."""

    documents: int
    text_bytes: int
    skipped: int


def write_stdlib_corpus(output: str | Path, library: str | Path | None = None) -> StdlibCorpus:
    """Writes one JSON line per module of `library` (default: the running Python's): {"text": its source, "meta": {"path": ...}}.

    The order is by a hash of the path: the same on every machine, and mixed, so that any split is alike in kind.
    """
    root = Path(library or sysconfig.get_paths()["stdlib"])
    modules = sorted(_modules(root), key=lambda path: hashlib.sha256(path.encode()).digest())
    documents = text_bytes = skipped = 0
    with atomic_outputs(output) as (file,):
        for module in modules:
            source = (root / module).read_bytes()
            try:
                text = source.decode("utf-8")
            except UnicodeDecodeError:
                text = ""
            if not text.strip():
                skipped += 1
                continue
            file.write(json.dumps({"text": text, "meta": {"path": module}}, ensure_ascii=False).encode("utf-8") + b"\n")
            documents, text_bytes = documents + 1, text_bytes + len(source)
        if not documents:
            raise DataError(f"{root}: no Python modules there")
    return StdlibCorpus(documents, text_bytes, skipped)


def _modules(root: Path) -> Iterator[str]:
    """Paths of the modules below `root`, relative to it, with forward slashes."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from ((Path(folder) / name).relative_to(root).as_posix() for name in files if name.endswith(".py"))
