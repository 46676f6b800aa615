"""What every entry point shares: read the command line, check the whole configuration, and turn errors into messages and exit codes."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from megatron.config import Config, ConfigError, load_config
from megatron.config.command_line import parse_command_line
from megatron.config.derive import complete
from megatron.errors import UserError
from megatron.launch import exit_codes
from megatron.parallel.devices import visible_gpus
from megatron.parallel.environment import find_place

SECONDS_FOR_RANK_0_TO_SPEAK = 5.0


def read_keys(argv: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """Command line -> what the files and `--set` say, checked key by key. `overrides` are the entry point's own and win."""
    paths, directory, users, rest = parse_command_line(argv)
    if rest:
        raise ConfigError(f"nothing may follow `--`, but there is: {' '.join(rest)}")
    return load_config(paths, [*users, *overrides], directory)


def read_run(argv: Sequence[str], world_size: int | None = None, overrides: Sequence[str] = ()) -> Config:
    """Command line -> a complete, checked configuration, without importing torch.

    `world_size` is the number of processes; None takes it from the launcher's environment (1 for a plain `python train.py`).
    """
    config = read_keys(argv, overrides)
    cuda = uses_cuda(config)
    return complete(config, find_place().world_size if world_size is None else world_size, cuda=cuda)


def uses_cuda(config: Config) -> bool:
    """Whether the run's processes take GPUs."""
    return config.launch.device != "cpu" and visible_gpus() > 0


def run_entry(main: Callable[[list[str]], int]) -> None:
    """Call `main(argv)` and exit with its code. A UserError becomes one message, once, whatever the number of processes."""
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher ends the other ranks; let it
        rank = find_place().rank
        if rank != 0:  # usually every rank found the same mistake and rank 0 speaks for all: be ended while waiting for it
            time.sleep(SECONDS_FOR_RANK_0_TO_SPEAK)
        print(f"error{f' on rank {rank}' if rank else ''}: {error}", file=sys.stderr, flush=True)
        code = exit_codes.USER_ERROR
    except KeyboardInterrupt:
        code = exit_codes.FAILED
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process with all output written, and without tearing down torch and its communication threads, once they are loaded.

    All files are closed by then. The teardown was seen to abort a finished run (torch 2.13, gloo: "terminate called without an active
    exception"), which made an exit code of 0 into a failure.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if "torch" in sys.modules:
        os._exit(code)
    sys.exit(code)
