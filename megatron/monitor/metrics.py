"""Where the figures of a run go: metrics.jsonl, TensorBoard, wandb. A place that fails never stops the training."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.monitor.curve import Curve
from megatron.monitor.json_lines import JsonLines
from megatron.monitor.sinks import Record, Scalars, Sink, evaluation_scalars, plain, positional_scalars, training_scalars
from megatron.monitor.tensorboard import TensorBoard
from megatron.monitor.weights_and_biases import WeightsAndBiases

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """One line on stderr; `Progress.say` does the same beside a bar."""
    print(text, file=sys.stderr, flush=True)


class NullMetrics:
    """The metrics of every process but the first: nothing."""

    def training(self, record: Record) -> None:
        """Nothing."""

    def evaluation(self, record: Record, facts: Record) -> None:
        """Nothing."""

    def curve(self, curve: Curve) -> None:
        """Nothing."""

    def positional(self, record: Record) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Metrics(NullMetrics):
    """Passes each record to every place that the configuration names. Made on the first process alone.

    `config` is the configuration, flat or by group, for the places that show it; `start_step` is the step that the run goes on from.
    `tensorboard_dir` and `wandb` (see `wandb_settings`) are optional places: absent packages and failures are said once, through `say`,
    and that place is left out from then on. `log_dir` is where metrics.jsonl and evaluations.jsonl go; that they cannot be written at the
    start is the user's to mend (MetricsFileError, a UserError), and later failures are said once while the lines wait in memory.
    A resumed run appends: for a step that was trained twice, the later line counts.
    """

    def __init__(
        self,
        log_dir: str | Path | None,
        *,
        tensorboard_dir: str | Path | None = None,
        wandb: dict[str, Any] | None = None,
        config: dict[str, Any],
        start_step: int = 0,
        say: Say = say_on_stderr,
    ):
        self._say = say
        self._failing: set[str] = set()
        self._sinks: list[Sink] = []
        self._evaluations: list[Sink] = []  # that take nothing else
        if log_dir is not None:
            self._sinks.append(JsonLines(log_dir))
            self._evaluations.append(JsonLines(log_dir, "evaluations.jsonl"))
        if tensorboard_dir is not None:
            self._open("tensorboard_dir", "requirements-tensorboard.txt", lambda: TensorBoard(tensorboard_dir, config, start_step))
        if wandb is not None:
            self._open("use_wandb", "requirements-wandb.txt", lambda: WeightsAndBiases(wandb, config))

    def training(self, record: Record) -> None:
        """`{"step", "lm_loss", "learning_rate", "grad_norm", "loss_scale", "tokens", "tokens_per_second", "seconds", "tflops", ...}`."""
        self._write(record, training_scalars, self._sinks)

    def evaluation(self, record: Record, facts: Record) -> None:
        """`{"step", "split", "protocol", "eval_length", "scored_tokens", "loss", "perplexity", "stderr", ...}`.

        `facts` say what was evaluated, for evaluations.jsonl alone: its lines are read without the run's other files.
        """
        self._write(record, evaluation_scalars, self._sinks)
        self._write({**facts, **record}, evaluation_scalars, self._evaluations)

    def curve(self, curve: Curve) -> None:
        """Perplexity by length at one step; nothing for a single point."""
        if len(curve.points()) > 1:
            self._pass(self._sinks, lambda sink: sink.curve(curve))

    def positional(self, record: Record) -> None:
        """`{"step", "positional": {"layer0": {...}, ...}}`: figures of the learnt positional encodings, once an evaluation."""
        self._write(record, positional_scalars, self._sinks)

    def close(self) -> None:
        """Write what is in memory; the object is of no use afterwards. Safe to call twice."""
        sinks = [*self._sinks, *self._evaluations]
        self._sinks, self._evaluations = [], []
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                self._say(f"{sink.name} could not be completed: {_reason(error)}.")

    def _open(self, key: str, requirements: str, make: Callable[[], Sink]) -> None:
        try:
            self._sinks.append(make())
        except ImportError as error:
            self._say(
                f"{key}: nothing is logged there, because {_reason(error)}. Install it with `pip install -r requirements/{requirements}`."
            )
        except Exception as error:
            self._say(f"{key}: nothing is logged there, because it could not be started: {_reason(error)}.")

    def _write(self, record: Record, scalars_of: Callable[[Record], Scalars], sinks: list[Sink]) -> None:
        record = plain(record)
        scalars = scalars_of(record)
        self._pass(sinks, lambda sink: sink.write(record, scalars))

    def _pass(self, sinks: list[Sink], on: Callable[[Sink], None]) -> None:
        for sink in list(sinks):
            try:
                on(sink)
            except Exception as error:
                self._failed(sink, error)
            else:
                self._failing.discard(sink.name)

    def _failed(self, sink: Sink, error: Exception) -> None:
        if not sink.keeps_unwritten:
            self._sinks.remove(sink)
            self._say(f"{sink.name} failed and is switched off; training goes on. The reason: {_reason(error)}.")
        elif sink.name not in self._failing:
            self._failing.add(sink.name)
            self._say(f"{sink.name} cannot be written; its lines are kept in memory and training goes on. The reason: {_reason(error)}.")


def _reason(error: Exception) -> str:
    """The error's first line, without a full stop; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
