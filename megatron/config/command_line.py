"""The command line that all entry points share: GPT-NeoX's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron.config.base import ConfigError
from megatron.config.wording import nearest

USAGE = """\
[-d DIRECTORY] FILE [FILE ...] [--set key=value ...]

  FILE                     YAML files, merged; `.yml` may be left out
  -d, --conf_dir DIRECTORY folder of the files (its sub-folders are searched too)
  --set key=value ...      keys that win over the files; a.b=value reaches into blocks; may be repeated
  -h, --help               this text

Keys: configs/neox_arguments.md\
"""
DIRECTORY, SET, HELP = ("-d", "--conf_dir", "--conf-dir"), ("--set",), ("-h", "--help")
LAUNCHER = ("--local_rank", "--local-rank")  # the deepspeed launcher adds it; the environment says the same


def parse_command_line(argv: Sequence[str]) -> tuple[list[Path], str | None, list[str], list[str]]:
    """Words after the script's name -> (files, directory, overrides, words after `--`).

    Raises ConfigError for an unknown option, a missing value or no file; prints the usage and exits with 0 for --help.
    """
    paths: list[Path] = []
    overrides: list[str] = []
    rest: list[str] = []
    directory: str | None = None
    words = iter(argv)
    for word in words:
        option, equals, attached = word.partition("=")
        if word == "--":
            rest = list(words)
        elif option in DIRECTORY:
            directory = attached if equals else _value(option, words)
        elif option in SET:
            overrides.append(attached if equals else _value(option, words))
        elif option in LAUNCHER:
            _ = equals or _value(option, words)
        elif option in HELP:
            print(USAGE)
            raise SystemExit(0)
        elif word.startswith("-"):
            raise ConfigError(f"unknown option {option}{nearest(option, [*DIRECTORY, *SET, *HELP])} Keys are set with --set key=value.")
        elif overrides and equals:
            overrides.append(word)  # further pairs after the first --set
        else:
            paths.append(Path(word))
    if not paths:
        raise ConfigError(f"no configuration file was given. Usage: {USAGE.splitlines()[0]}")
    return paths, directory, overrides, rest


def _value(option: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None or value == "--":
        raise ConfigError(f"{option}: a value must follow.")
    return value
