"""What the command lines of the data tools share."""

import signal
import sys
import time
from collections.abc import Callable

from megatron.data.preprocess import Progress
from megatron.errors import UserError
from megatron.launch import exit_codes


def run_command(main: Callable[[list[str]], None]) -> None:
    """Calls `main(arguments)` and exits. A user's mistake, or what the operating system refuses, is one message and exit code 2.

    Being terminated goes through the same clean-up as Ctrl-C: no temporary files are left.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    code = exit_codes.DONE
    try:
        main(sys.argv[1:])
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = exit_codes.USER_ERROR
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = exit_codes.FAILED
    sys.exit(code)


class ProgressPrinter:
    """Prints documents, speed and time left every so many documents to stderr; on a terminal over its own last line."""

    def __init__(self, every: int, documents: int | None = None):
        """`documents`: how many there are, if known; otherwise the time left follows from the share of the files that is read."""
        self._every, self._expected = every, documents
        self._start: float | None = None  # the first call
        self._printed = 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, progress: Progress) -> None:
        self._start = self._start or time.monotonic()
        if progress.documents - self._printed >= self._every:
            self._printed = progress.documents
            print(self.line(progress), end="\r" if self._terminal else "\n", file=sys.stderr, flush=True)

    def line(self, progress: Progress) -> str:
        seconds = max(time.monotonic() - self._start, 1e-3)
        share = progress.documents / self._expected if self._expected else progress.share
        left = seconds / share * (1 - share) if 0 < share <= 1 else 0.0
        return (
            f"{progress.documents:,} documents, {progress.documents / seconds:,.0f} documents/s, "
            f"{progress.text_bytes / seconds / 1e6:.2f} MB/s, {format_seconds(left)} left "
        )

    def finish(self, progress: Progress) -> None:
        """The last line: totals, and how long it took."""
        seconds = time.monotonic() - self._start
        print(
            f"{progress.documents:,} documents, {progress.tokens:,} tokens, {progress.text_bytes / 1e6:,.1f} MB of text "
            f"in {format_seconds(seconds)}" + " " * 20 * self._terminal,
            file=sys.stderr,
        )


def format_seconds(seconds: float) -> str:
    """4000 -> 1:06:40."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
