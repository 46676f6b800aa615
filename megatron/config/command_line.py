"""The command line that all entry points share."""

from collections.abc import Sequence
from pathlib import Path

from megatron.config.base import ConfigError


def parse_command_line(argv: Sequence[str]) -> tuple[list[Path], str | None, list[str], list[str]]:
    """`[-d DIR] FILE... [--set key=value]...` -> (paths, directory, overrides, rest)."""
    paths, overrides, directory = [], [], None
    words = iter(argv)
    for word in words:
        if word in ("-d", "--conf_dir"):
            directory = next(words, None)
        elif word == "--set":
            overrides.append(next(words, ""))
        elif word.startswith("-"):
            raise ConfigError(f"{word}: unknown option")
        else:
            paths.append(Path(word))
    return paths, directory, overrides, []
