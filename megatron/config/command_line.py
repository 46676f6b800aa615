"""The command line that all entry points share: GPT-NeoX's."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from megatron.config.base import ConfigError
from megatron.config.wording import nearest

USAGE = """\
[-d DIRECTORY] FILE [FILE ...] [--set key=value ...]

  FILE                     YAML files, merged; `.yml` may be left out
  -d, --conf_dir DIRECTORY folder of the files (its sub-folders are searched too)
  --set key=value ...      keys that win over the files; a.b=value reaches into blocks; may be repeated
  --lengths N ...          short for --set eval_lengths=[N, ...]
  --protocols NAME ...     short for --set eval_protocols=[NAME, ...]
  --stride N               short for --set eval_stride=N
  --again                  short for --set eval_again=true
  -h, --help               this text

Keys: configs/neox_arguments.md\
"""
DIRECTORY, SET, HELP = ("-d", "--conf_dir", "--conf-dir"), ("--set",), ("-h", "--help")
LISTS = {"--lengths": "eval_lengths", "--protocols": "eval_protocols"}  # take all words up to the next option
STRIDE, AGAIN = ("--stride",), ("--again",)
OPTIONS = (*DIRECTORY, *SET, *HELP, *LISTS, *STRIDE, *AGAIN)
LAUNCHER = ("--local_rank", "--local-rank")  # the deepspeed launcher adds it; the environment says the same


def parse_command_line(argv: Sequence[str]) -> tuple[list[Path], str | None, list[str], list[str]]:
    """Words after the script's name -> (files, directory, overrides, words after `--`).

    Raises ConfigError for an unknown option, a missing value or no file; prints the usage and exits with 0 for --help.
    """
    paths: list[Path] = []
    overrides: list[str] = []
    rest: list[str] = []
    directory: str | None = None
    words = deque(argv)
    while words:
        word = words.popleft()
        option, equals, attached = word.partition("=")
        if word == "--":
            rest = list(words)
            words.clear()
        elif option in DIRECTORY:
            directory = attached if equals else _value(option, words)
        elif option in SET:
            overrides.append(attached if equals else _value(option, words))
        elif option in LISTS:
            overrides.append(f"{LISTS[option]}=[{attached if equals else _values(option, words)}]")
        elif option in STRIDE:
            overrides.append(f"eval_stride={attached if equals else _value(option, words)}")
        elif option in AGAIN and not equals:
            overrides.append("eval_again=true")
        elif option in LAUNCHER:
            _ = equals or _value(option, words)
        elif option in HELP:
            print(USAGE)
            raise SystemExit(0)
        elif word.startswith("-"):
            raise ConfigError(f"unknown option {option}{nearest(option, OPTIONS)} Keys are set with --set key=value.")
        elif overrides and equals:
            overrides.append(word)  # further pairs after the first --set
        else:
            paths.append(Path(word))
    if not paths:
        raise ConfigError(f"no configuration file was given. Usage: {USAGE.splitlines()[0]}")
    return paths, directory, overrides, rest


def _value(option: str, words: deque[str]) -> str:
    if not words or words[0] == "--":
        raise ConfigError(f"{option}: a value must follow.")
    return words.popleft()


def _values(option: str, words: deque[str]) -> str:
    """All words up to the next option, with commas between them."""
    values = []
    while words and not words[0].startswith("-"):
        values.append(words.popleft())
    if not values:
        raise ConfigError(f"{option}: values must follow, as in {option} {'128 256' if option == '--lengths' else 'last sliding'}.")
    return ", ".join(values)
