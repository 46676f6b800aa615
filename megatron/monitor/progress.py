"""How far a run is: a bar on a terminal, lines elsewhere (log files, schedulers)."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Literal, TextIO, TypeVar

from tqdm import tqdm

Mode = Literal["auto", "bar", "lines", "none"]
Item = TypeVar("Item")

BAR_FIGURES = ("loss", "lm_loss", "tokens_per_second", "mfu")  # what there is room for beside a bar
SECONDS_BETWEEN_LINES = 10.0  # of `track`, where there is no bar


class NullProgress:
    """The progress of every process but the first: nothing."""

    def advance(self, step: int) -> None:
        """Nothing."""

    def step(self, step: int, **figures: float | None) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def track(self, iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
        """The iterable as it is."""
        return iter(iterable)

    def close(self) -> None:
        """Nothing."""


class Progress(NullProgress):
    """Progress of a training run from `start_step` to `total_steps`. Made on the first process alone.

    mode: `bar`, `lines`, `none` (messages only), or `auto`: a bar where `stream` (default stderr) is a terminal, lines elsewhere.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        mode: Mode = "auto",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream = sys.stderr if stream is None else stream
        self._mode = resolve_mode(mode, self._stream)
        self._total, self._start, self._clock, self._started = total_steps, start_step, clock, clock()
        self._bar: tqdm | None = None
        if self._mode == "bar":
            self._bar = tqdm(total=total_steps, initial=start_step, desc="training", unit="step", file=self._stream, dynamic_ncols=True)

    def advance(self, step: int) -> None:
        """`step` steps are done: moves the bar; prints no line."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def step(self, step: int, **figures: float | None) -> None:
        """`step` steps are done, with these figures (loss=, learning_rate=, tokens_per_second=, tflops=, ...; None is left out).

        Moves the bar and shows the figures beside it; elsewhere prints one line with the time left. The caller decides how often.
        """
        if self._bar is not None:
            self._bar.set_postfix_str(describe({name: figures[name] for name in BAR_FIGURES if name in figures}), refresh=False)
            self.advance(step)
        elif self._mode == "lines":
            self._print(", ".join(part for part in (f"step {step}/{self._total}", describe(figures), self._time_left(step)) if part))

    def say(self, text: str) -> None:
        """Print a message on a line of its own, in every mode; a bar goes on below it."""
        with tqdm.external_write_mode(file=self._stream):
            self._print(text)

    def track(self, iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
        """The items of a loop inside the run, such as an evaluation, with a progress of their own."""
        return track(iterable, description, total, mode=self._mode, stream=self._stream, clock=self._clock)

    def close(self) -> None:
        """Leave the bar as it stands. Safe to call twice."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._mode = "none"

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _time_left(self, step: int) -> str:
        done = step - self._start
        if done <= 0:
            return ""
        return f"{_duration((self._clock() - self._started) / done * (self._total - step))} left"


def track(
    iterable: Iterable[Item],
    description: str,
    total: int | None = None,
    *,
    mode: Mode = "auto",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Item]:
    """The items of `iterable`, with a bar that disappears at the end, or a line every ten seconds where there is no terminal.

    `total` defaults to the iterable's length, where it has one.
    """
    stream = sys.stderr if stream is None else stream
    mode = resolve_mode(mode, stream)
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)
    if mode == "bar":
        yield from tqdm(iterable, desc=description, total=total, file=stream, leave=False, dynamic_ncols=True)
        return
    last = clock()
    for done, item in enumerate(iterable, start=1):
        yield item
        if mode == "lines" and clock() - last >= SECONDS_BETWEEN_LINES:
            last = clock()
            print(f"{description} {done}" + ("" if total is None else f"/{total}"), file=stream, flush=True)


def resolve_mode(mode: Mode, stream: TextIO) -> Literal["bar", "lines", "none"]:
    """What `auto` means for this stream."""
    if mode != "auto":
        return mode
    return "bar" if _has_room_for_a_bar(stream) else "lines"


def _has_room_for_a_bar(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can redraw a line and knows its width (a container's may say 0 columns)."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except OSError:
        return False


def describe(figures: dict[str, float | None]) -> str:
    """`loss 3.2145, 12.3k tokens/s`: the figures that are known, in the order given."""
    return ", ".join(_describe_one(name, value) for name, value in figures.items() if value is not None)


def _describe_one(name: str, value: float) -> str:
    return _FORMATS[name](value) if name in _FORMATS else f"{name} {value:.4g}"


_FORMATS: dict[str, Callable[[float], str]] = {
    "loss": lambda value: f"loss {value:.4f}",
    "lm_loss": lambda value: f"loss {value:.4f}",
    "learning_rate": lambda value: f"rate {value:.3g}",
    "grad_norm": lambda value: f"gradient {value:.3g}",
    "loss_scale": lambda value: f"scale {value:g}",
    "tokens": lambda value: f"{_thousands(value)} tokens",
    "tokens_per_second": lambda value: f"{_thousands(value)} tokens/s",
    "tflops": lambda value: f"{value:.3g} TFLOP/s",
    "mfu": lambda value: f"MFU {100 * value:.1f}%",
    "seconds": lambda value: f"{value:.3g} s/step",
}


def _thousands(value: float) -> str:
    """1234567 -> 1.23M: three digits."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}" if value < 1000 * size else f"{value / size:.0f}{letter}"
    return f"{value:.3g}"


def _duration(seconds: float) -> str:
    """3725.4 -> 1:02:05."""
    return str(timedelta(seconds=round(seconds)))
