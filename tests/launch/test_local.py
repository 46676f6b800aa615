"""The local launcher with real processes: environment, exit codes, the fate of the others, signals."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from megatron.errors import UserError
from megatron.launch.local import check_free

RUNNER = """
import sys
from megatron.launch.local import launch_local
sys.exit(launch_local([sys.executable, "-c", sys.argv[1]], 2, master_addr="127.0.0.1", master_port=None, threads=1))
"""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def launch(code, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def test_every_process_knows_its_place():
    child = launch(say_line("{RANK} {WORLD_SIZE} {LOCAL_RANK} {MASTER_PORT}"))
    out, _ = child.communicate(timeout=30)
    ranks = sorted(line.split() for line in out.splitlines())
    assert [r[:3] for r in ranks] == [["0", "2", "0"], ["1", "2", "1"]]
    assert ranks[0][3] == ranks[1][3] and child.returncode == 0


@pytest.mark.parametrize("code, expected", [("2", 2), ("75", 75), ("1", 1), ("7", 1)])
def test_exit_codes_pass_through_where_they_are_documented(code, expected):
    child = launch(f"import sys; sys.exit({code})")
    child.communicate(timeout=30)
    assert child.returncode == expected


def test_one_failure_ends_the_others():
    begin = time.monotonic()
    child = launch("import os, sys, time; sys.exit(2) if os.environ['RANK'] == '0' else time.sleep(300)")
    child.communicate(timeout=60)
    assert child.returncode == 2 and time.monotonic() - begin < 60


def test_a_killed_process_is_a_failure_that_names_the_signal():
    child = launch("import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(300)")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1 and "SIGKILL" in err


def test_a_port_in_use_is_named():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        with pytest.raises(UserError, match="master_port"):
            check_free(listener.getsockname()[1])


def test_signals_reach_every_process():
    child = launch(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
        f"{say_line('ready')}\n"
        "time.sleep(300)"  # broken off by the signal
    )
    assert child.stdout.readline() == "ready\n" and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGUSR1)
    child.communicate(timeout=30)
    assert child.returncode == 75


def test_killing_the_launcher_leaves_no_orphans():
    child = launch(f"{say_line('{pid}')}; import time; time.sleep(300)")
    pids = [int(child.stdout.readline()) for _ in range(2)]
    child.kill()
    child.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(running(pid) for pid in pids):
        time.sleep(0.1)
    assert not any(running(pid) for pid in pids)


def say_line(template):
    """Code that writes a line in one piece, so that the lines of two processes never mix."""
    return f"import os; os.write(1, ({template!r}.format(pid=os.getpid(), **os.environ) + chr(10)).encode())"


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(") ")[1][0] not in "ZX"
    except FileNotFoundError:
        return False
