"""How far the runs are: a table that is redrawn on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tools.reproduction.plans import Plan

SECONDS_BETWEEN_LINES = 30.0
WAITING, TRAINING, EVALUATING, DONE, FAILED = "waiting", "training", "evaluating", "done", "failed"


class Display:
    """A context manager: the runs with state, step, loss and time left of the training."""

    def __init__(self, plans: Sequence[Plan], console: Console):
        self.console = console
        self.states = {plan: DONE if plan.finished() else WAITING for plan in plans}
        self.starts: dict[Plan, tuple[float, int]] = {}  # when it was started, and the step that it had then
        self.seconds: dict[Plan, float] = {}  # of those that ended
        self.last_lines = time.monotonic()
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "Display":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.refresh()
            self.live.stop()

    def started(self, plan: Plan) -> None:
        """A run begins, or goes on."""
        self.states[plan], self.starts[plan] = TRAINING, (time.monotonic(), plan.progress()[0])
        self.say(f"{plan.name}: started, {plan.log}")

    def ended(self, plan: Plan, ok: bool) -> None:
        """A run is finished, or failed."""
        self.states[plan], self.seconds[plan] = DONE if ok else FAILED, time.monotonic() - self.starts[plan][0]
        self.say(f"{plan.name}: {self.states[plan]} after {duration(self.seconds[plan])}")

    def refresh(self) -> None:
        """Show how far the running ones are."""
        for plan, state in self.states.items():
            if state == TRAINING and plan.progress()[0] >= plan.steps:
                self.states[plan] = EVALUATING
        if self.live:
            self.live.update(self.table(), refresh=True)
        elif time.monotonic() - self.last_lines > SECONDS_BETWEEN_LINES:
            self.last_lines = time.monotonic()
            for plan, state in self.states.items():
                if state in (TRAINING, EVALUATING):
                    self.say(": ".join((plan.name, ", ".join(part for part in self.row(plan)[1:] if part))))

    def table(self) -> Table:
        """All runs."""
        table = Table("run", "state", "step", "loss", "took", "training left")
        for plan in self.states:
            table.add_row(*self.row(plan))
        return table

    def row(self, plan: Plan) -> list[str]:
        """Name, state, step, loss, seconds so far, seconds left of the training."""
        state, (step, loss) = self.states[plan], plan.progress()
        took = left = ""
        if plan in self.starts:
            since, before = self.starts[plan]
            seconds = self.seconds.get(plan, time.monotonic() - since)
            took = duration(seconds)
            left = duration(seconds / (step - before) * (plan.steps - step)) if state == TRAINING and step > before else ""
        return [plan.name, state, f"{step:,}/{plan.steps:,}", "" if loss is None else f"{loss:.3f}", took, left and f"{left} left"]

    def say(self, text: str) -> None:
        """A line where there is no table."""
        if not self.live:
            self.console.print(text, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """65.2 -> 0:01:05."""
    return str(timedelta(seconds=round(seconds)))
