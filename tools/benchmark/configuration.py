"""The configuration of a tool that computes about a run instead of starting one: the entry points' own options, for argparse."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from megatron.config import Config, load_config
from megatron.config.derive import complete

VOCABULARY = 50257  # GPT-2's


def add_configuration(parser: ArgumentParser) -> None:
    """FILE ..., -d, --set, as `train.py` has them, and --vocabulary."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML files of the run, merged; `.yml` may be left out")
    parser.add_argument(
        "-d", "--conf_dir", "--conf-dir", metavar="DIRECTORY", help="folder of the files (its sub-folders are searched too)"
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="key=value", help="keys that win over the files")
    parser.add_argument(
        "--vocabulary", type=at_least(1), default=VOCABULARY, help="token ids, before padding (default: %(default)s, GPT-2's)"
    )


def read_configuration(options: Namespace) -> Config:
    """Complete but for what depends on the machine. Raises ConfigError."""
    return complete(load_config(options.files, options.set, options.conf_dir), None)


def at_least(lowest: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """An argparse type: a number from `lowest` on."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not lowest <= value < float("inf"):
            raise ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number from {lowest} on")
        return value

    return read
