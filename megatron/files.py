"""Small files that are whole or not there: written under a temporary name in the same folder, then renamed."""

import os
from contextlib import suppress
from pathlib import Path

from megatron.errors import UserError

TEMPORARY_PREFIX = ".writing-"


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`, making its folder. Raises UserError, and leaves nothing behind, where that is impossible."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror}. Give another place, or make that one writable.") from None


def check_writable(folder: Path) -> None:
    """Raises UserError, before anything expensive, where files could not be written to `folder`. Leaves no trace, also of a new folder."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not there.is_dir():
        raise UserError(f"{folder} cannot be written: {there} is not a folder. Give another place.")
    probe = there / f"{TEMPORARY_PREFIX}probe-{folder.name}"
    write_atomically(probe, "")
    probe.unlink()
