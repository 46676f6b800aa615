"""Start one process per device on this machine, pass signals on, and end all of them when one fails. Needs no hostfile and no ssh."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from megatron.errors import UserError
from megatron.launch import exit_codes
from megatron.parallel.environment import free_port

GRACE_SECONDS = 30.0  # between asking the other processes to stop and killing them
POLL_SECONDS = 0.05


def launch_local(command: Sequence[str], processes: int, *, master_addr: str, master_port: int | None, threads: int) -> int:
    """Run `command` `processes` times and wait. Returns the exit code of the first process that failed, else 0."""
    if master_port is not None:
        check_free(master_port)
    port = master_port or free_port()
    children: list[subprocess.Popen] = []
    forward_signals(children)  # before there are any: no signal is lost in between
    for rank in range(processes):
        environment = child_environment(rank, processes, master_addr, port, threads)
        children.append(subprocess.Popen(command, env=environment, preexec_fn=die_with_parent))
    return wait_for_all(children)


def child_environment(rank: int, processes: int, master_addr: str, port: int, threads: int) -> dict[str, str]:
    """The parent's environment and torchrun's variables."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONUNBUFFERED": "1",
    }


def check_free(port: int) -> None:
    """Raises UserError where something listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"master_port: {port} cannot be used ({error.strerror}). Give another one, or leave it out for a free one."
            ) from None


def die_with_parent() -> None:
    """In a child on Linux: be ended when the launcher is, even by kill -9."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def forward_signals(children: Sequence[subprocess.Popen]) -> None:
    """SIGTERM and SIGUSR1 go on to every process. Ctrl-C reaches them from the terminal; here it only must not end the wait."""

    def forward(number: int, _frame: object) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGUSR1, forward)
    signal.signal(signal.SIGINT, lambda *_: None)


def wait_for_all(children: Sequence[subprocess.Popen]) -> int:
    """Wait; after the first failure give the others GRACE_SECONDS to stop, then kill them."""
    failed: int | None = None
    deadline = float("inf")
    while None in [child.poll() for child in children]:  # a list: every one is polled, so that every end is seen
        if failed is None:
            codes = [child.returncode for child in children if child.returncode]
            if codes:
                failed = codes[0]
                stopping = failed == exit_codes.STOPPED_RESUME_ME  # the others are about to stop by themselves
                deadline = time.monotonic() + GRACE_SECONDS
                if not stopping:
                    send_all(children, signal.SIGTERM)
                    deadline = time.monotonic() + (2.0 if failed == exit_codes.USER_ERROR else GRACE_SECONDS / 3)
        elif time.monotonic() > deadline:
            send_all(children, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    codes = [child.returncode for child in children if child.returncode]
    first = failed if failed is not None else (codes[0] if codes else 0)
    if first < 0:
        print(f"deepy.py: a process was ended by {signal.Signals(-first).name}; the others were stopped.", file=sys.stderr)
    return exit_codes.from_child(first)


def send_all(children: Sequence[subprocess.Popen], number: int) -> None:
    """Send a signal to those still running."""
    for child in children:
        if child.poll() is None:
            child.send_signal(number)
