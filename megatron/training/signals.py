"""Asking a run to stop: a signal sets a flag that the training loop reads between two steps."""

import signal
import threading
from collections.abc import Callable

import torch

from megatron.parallel.distributed import Processes

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Set by SIGTERM, SIGUSR1 (SLURM's warning) or the first Ctrl-C; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def agreed(self, processes: Processes) -> Callable[[], bool]:
        """A question that all processes ask together and that has one answer: was any of them asked to stop?"""
        return lambda: bool(processes.sum(torch.tensor(float(self.reason is not None), device=processes.device)))

    def _receive(self, number: int, _frame: object) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
