"""A bar on a terminal, lines elsewhere, messages everywhere."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from megatron.monitor import progress as module
from megatron.monitor.progress import NullProgress, Progress, describe, resolve_mode, track


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("columns", "mode"), [(80, "bar"), (0, "lines")])
def test_auto_is_a_bar_where_the_terminal_has_a_width(monkeypatch, columns, mode):
    monkeypatch.setenv("TERM", "xterm")
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(inside, "w") as stream:
        assert resolve_mode("auto", stream) == mode
    os.close(outside)


def test_auto_is_lines_elsewhere(monkeypatch):
    assert resolve_mode("auto", io.StringIO()) == "lines"
    assert resolve_mode("bar", io.StringIO()) == "bar" and resolve_mode("none", Terminal()) == "none"
    monkeypatch.setenv("TERM", "dumb")
    assert resolve_mode("auto", Terminal()) == "lines"


def test_lines_say_how_far_how_good_how_fast_and_how_long():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(200, 100, "lines", stream, clock)
    clock.now = 20.0
    progress.advance(109)  # prints nothing
    progress.step(110, loss=3.21456, learning_rate=6e-4, tokens_per_second=12345.0, tflops=None, mfu=0.4)
    progress.say("saved a checkpoint")
    progress.close()
    assert stream.getvalue().splitlines() == [
        "step 110/200, loss 3.2146, rate 0.0006, 12.3k tokens/s, MFU 40.0%, 0:03:00 left",  # 90 steps of 2 seconds
        "saved a checkpoint",
    ]


def test_a_step_before_any_time_is_known_prints_no_time_left():
    stream = io.StringIO()
    Progress(10, 5, "lines", stream).step(5, loss=1.0)
    assert stream.getvalue() == "step 5/10, loss 1.0000\n"


def test_bar_shows_step_loss_and_speed_and_starts_where_the_run_does():
    stream = Terminal()
    progress = Progress(200, 100, "bar", stream)
    progress.advance(149)
    progress.step(150, lm_loss=2.5, tokens_per_second=2e6, grad_norm=7.0)
    progress._bar.refresh()
    assert progress._bar.n == 150 and "150/200" in stream.getvalue()
    assert "loss 2.5000, 2M tokens/s" in stream.getvalue() and "gradient" not in stream.getvalue()
    progress.close()
    progress.close()


def test_a_message_gets_a_line_of_its_own_beside_a_bar():
    stream = Terminal()
    progress = Progress(10, 0, "bar", stream)
    progress.step(1, loss=2.0)
    progress.say("evaluating")
    progress.close()
    before, after = stream.getvalue().split("evaluating\n")
    assert before.rpartition("\r")[2].strip() == ""  # the bar was cleared first
    assert "training" in after  # and drawn again


def test_none_prints_messages_only():
    stream = Terminal()
    progress = Progress(10, 0, "none", stream)
    progress.step(1, loss=2.0)
    assert list(progress.track([1, 2], "evaluating")) == [1, 2]
    progress.say("a message")
    progress.close()
    assert stream.getvalue() == "a message\n"


def test_other_processes_print_nothing(capsys):
    progress = NullProgress()
    progress.step(1, loss=2.0)
    progress.advance(2)
    progress.say("a message")
    assert list(progress.track(range(3), "evaluating", 3)) == [0, 1, 2]
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_track_prints_a_line_now_and_then():
    stream, clock = io.StringIO(), Clock()
    seen = []
    for item in track(iter("abcdef"), "evaluating at 1,024", 6, mode="lines", stream=stream, clock=clock):
        seen.append(item)
        clock.now += 0.4 * module.SECONDS_BETWEEN_LINES
    assert seen == list("abcdef")
    assert stream.getvalue().splitlines() == ["evaluating at 1,024 3/6", "evaluating at 1,024 6/6"]


def test_track_on_a_terminal_is_a_bar_that_goes_away():
    stream = Terminal()
    assert list(track([1, 2, 3], "evaluating", mode="bar", stream=stream)) == [1, 2, 3]
    assert "evaluating" in stream.getvalue() and "/3" in stream.getvalue()
    assert stream.getvalue().rpartition("\r")[2].strip() == ""


def test_track_inside_a_run_has_its_mode():
    stream = Terminal()
    progress = Progress(10, 0, "bar", stream)
    assert list(progress.track([1, 2], "evaluating")) == [1, 2]
    progress.close()
    assert "evaluating" in stream.getvalue()


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"tokens_per_second": 999.6}, "1e+03 tokens/s"),
        ({"tokens_per_second": 1234567.0}, "1.23M tokens/s"),
        ({"tokens": 40, "loss_scale": 65536.0, "seconds": 0.51234}, "40 tokens, scale 65536, 0.512 s/step"),
        ({"lm_loss": float("nan"), "other": 1.23456}, "loss nan, other 1.235"),
        ({}, ""),
    ],
)
def test_descriptions(figures, text):
    assert describe(figures) == text
