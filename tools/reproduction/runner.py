"""Several runs at once: started as there is room, waited for, stopped together."""

import subprocess
import time
from collections.abc import Sequence

from megatron.launch.local import GRACE_SECONDS, die_with_parent
from tools.reproduction.display import Display
from tools.reproduction.plans import Plan

POLL_SECONDS = 0.5


def run_all(plans: Sequence[Plan], jobs: int, display: Display) -> dict[Plan, int]:
    """Run all, `jobs` at once, in order. Returns those that failed with their exit codes.

    Ctrl-C stops them first, with a checkpoint each.
    """
    waiting, running, failed = list(plans), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                plan = waiting.pop(0)
                display.started(plan)
                running[plan] = start(plan)
            for plan, process in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[plan]
                    if code or not plan.finished():
                        failed[plan] = code
                    display.ended(plan, ok=plan not in failed)
            display.refresh()
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        stop(list(running.values()))
        raise
    return failed


def start(plan: Plan) -> subprocess.Popen:
    """The run as a process of its own; what it says is appended to its log. It ends when this process does, whatever ends that."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    with plan.log.open("a") as log:
        return subprocess.Popen(
            plan.command, env=plan.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
        )


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """Let every run finish its step and save; kill what takes longer than GRACE_SECONDS."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
