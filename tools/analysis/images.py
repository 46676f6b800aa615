"""Figures as PNG files."""

import os
from contextlib import suppress
from pathlib import Path

from matplotlib.figure import Figure

from megatron.errors import UserError


def save(figure: Figure, path: Path) -> None:
    """Write the PNG whole or not at all: under a temporary name in the same folder, then renamed. Raises UserError where it cannot."""
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, format="png", dpi=150)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"--output: cannot write {path}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
