"""metrics.jsonl and the other places that metrics go to, and that none of them can stop a run."""

import errno
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megatron.config.logging import LoggingConfig
from megatron.errors import UserError
from megatron.monitor.json_lines import read_json_lines
from megatron.monitor.metrics import Metrics, NullMetrics
from megatron.monitor.weights_and_biases import PUBLIC_SERVER, wandb_settings

TRAINING = {"step": 10, "lm_loss": 1 / 3, "learning_rate": 6e-4, "grad_norm": 0.1, "loss_scale": None, "tokens": 1280, "seconds": 0.5}
EVALUATION = {
    "step": 10,
    "split": "valid",
    "protocol": "last",
    "eval_length": 1024,
    "scored_tokens": 2560,
    "loss": 2.5,
    "perplexity": math.exp(2.5),
    "stderr": 0.01,
}

FACTS = {"run": "a", "checkpoint": None}
POSITIONAL = {"step": 10, "positional": {"layer0": {"a_mean": 0.5, "p_mean": 1.5}, "layer1": {"a_mean": 0.25, "p_mean": 1.0}}}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class FakeRun:
    """A wandb run that fails at its `fails_at`-th line."""

    def __init__(self, fails_at=None):
        self.logged, self.metrics, self.finished, self.calls, self.fails_at = [], [], False, 0, fails_at

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, figures):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ConnectionError("the network is gone.\nmany more lines")
        self.logged.append(figures)

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A module in wandb's place; `.run` is the run that its `init` returns, `.arguments` what `init` was called with."""
    module = SimpleNamespace(run=FakeRun(), arguments=None, Settings=lambda **settings: settings)

    def init(**arguments):
        module.arguments = arguments
        return module.run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


# --- metrics.jsonl


def test_lines_are_records_at_full_precision_and_flushed(tmp_path):
    metrics = Metrics(tmp_path / "new" / "logs", config={})
    metrics.training(TRAINING)
    assert lines(tmp_path / "new/logs") == [TRAINING]  # before close; floats compare exactly
    metrics.evaluation(EVALUATION, FACTS)
    assert lines(tmp_path / "new/logs") == [TRAINING, EVALUATION]
    assert list(lines(tmp_path / "new/logs")[0]) == list(TRAINING)
    metrics.close()


def test_figures_of_the_positional_encodings_reach_every_place(tmp_path, wandb):
    pytest.importorskip("tensorboard")
    metrics = Metrics(tmp_path, tensorboard_dir=tmp_path / "events", wandb={}, config={})
    metrics.positional(POSITIONAL)
    metrics.close()
    assert lines(tmp_path) == [POSITIONAL]
    curves = {f"positional/{layer}/{name}": value for layer, inner in POSITIONAL["positional"].items() for name, value in inner.items()}
    assert wandb.run.logged == [{"step": 10, **curves}]
    assert read_events(tmp_path / "events")[0] == {name: [(10, value)] for name, value in curves.items()}


def test_tensors_and_numpy_scalars_are_numbers(tmp_path):
    Metrics(tmp_path, config={}).training(
        {
            "step": np.int64(3),
            "lm_loss": torch.tensor(0.1, dtype=torch.float64),
            "grad_norm": np.float32(0.5),
            "positional": {"a": torch.tensor(2.0)},
        }
    )
    assert lines(tmp_path) == [{"step": 3, "lm_loss": 0.1, "grad_norm": 0.5, "positional": {"a": 2.0}}]


def test_non_finite_numbers_leave_the_json_valid_and_are_read_back(tmp_path):
    Metrics(tmp_path, config={}).training(
        {"step": 1, "lm_loss": math.nan, "grad_norm": math.inf, "tflops": -math.inf, "inner": {"x": [math.inf]}}
    )

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse)["inner"] == {"x": ["Infinity"]}
    (record,), broken = read_json_lines(tmp_path / "metrics.jsonl")
    assert math.isnan(record["lm_loss"]) and record["grad_norm"] == math.inf and record["tflops"] == -math.inf and not broken


def test_a_resumed_run_appends(tmp_path):
    for step in (1, 2):
        metrics = Metrics(tmp_path, config={})
        metrics.training({"step": step})
        metrics.close()
        metrics.close()  # twice is fine
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("half", [b'{"step": 2, "lm_lo', b'{"step": 2}'])
def test_half_a_line_of_a_killed_run_is_ended(tmp_path, half):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + half)
    metrics = Metrics(tmp_path, config={})
    metrics.training({"step": 3})
    assert path.read_bytes() == b'{"step": 1}\n' + half + b'\n{"step": 3}\n'
    records, broken = read_json_lines(path)
    whole = half.endswith(b"}")
    assert [record["step"] for record in records] == ([1, 2, 3] if whole else [1, 3])
    assert broken == ([] if whole else [2])


def test_nothing_is_added_to_a_file_that_ends_well(tmp_path):
    Metrics(tmp_path, config={}).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    Metrics(tmp_path, config={}).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"{}\n"


def test_log_dir_that_is_a_file_is_the_users_mistake(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(UserError, match="log_dir: cannot write .*logs.metrics.jsonl: (File exists|Not a directory)"):
        Metrics(tmp_path / "logs", config={})


class FullDisk:
    """A file on a disk that has room for `room` more bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(content[: self.room])
        self.room -= written
        return written

    def close(self):
        self.file.close()


def test_lines_wait_for_a_full_disk_and_none_is_lost(tmp_path):
    said = []
    metrics = Metrics(tmp_path, config={}, say=said.append)
    sink = metrics._sinks[0]
    sink._file = FullDisk(sink._file, room=20)
    for step in (1, 2, 3, 4):
        metrics.training({"step": step})
    assert len(said) == 1 and "No space left on device" in said[0] and "metrics.jsonl" in said[0]
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n{"step":'
    sink._file.room = 1000
    metrics.training({"step": 5})
    assert [record["step"] for record in lines(tmp_path)] == [1, 2, 3, 4, 5]
    sink._file.room = 0
    metrics.training({"step": 6})
    metrics.close()
    assert len(said) == 3 and "could not be completed" in said[2]  # failing anew is said anew


def test_without_log_dir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = Metrics(None, config={})
    metrics.training(TRAINING)
    metrics.close()
    assert list(tmp_path.iterdir()) == []


# --- TensorBoard


def read_events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}, events


def test_tensorboard_holds_one_name_per_length(tmp_path):
    pytest.importorskip("tensorboard")
    metrics = Metrics(None, tensorboard_dir=tmp_path, config={"model": {"hidden_size": 64}})
    metrics.training(TRAINING)
    metrics.training({**TRAINING, "step": 20, "lm_loss": math.nan})
    metrics.evaluation(EVALUATION, FACTS)
    metrics.evaluation({**EVALUATION, "eval_length": 2048, "perplexity": 4.0}, FACTS)
    metrics.close()
    scalars, events = read_events(tmp_path)
    assert [step for step, _ in scalars["train/lm_loss"]] == [10, 20]
    assert scalars["train/lm_loss"][0][1] == pytest.approx(1 / 3) and math.isnan(scalars["train/lm_loss"][1][1])
    assert scalars["valid/perplexity/1024"] == [(10, pytest.approx(math.exp(2.5)))]
    assert scalars["valid/perplexity/2048"] == [(10, 4.0)]
    assert set(scalars) == {f"train/{name}" for name in ("lm_loss", "learning_rate", "grad_norm", "tokens", "seconds")} | {
        f"valid/{name}/{length}" for name in ("loss", "perplexity", "stderr") for length in (1024, 2048)
    }
    (text,) = events.Tensors("configuration/text_summary")
    assert b"| model.hidden_size | 64 |" in text.tensor_proto.string_val[0]


def test_tensorboard_forgets_what_a_killed_run_did_after_its_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")
    for start in (0, 10):
        metrics = Metrics(None, tensorboard_dir=tmp_path, config={}, start_step=start)
        for step in (start + 5, start + 10, start + 15):
            metrics.training({"step": step, "lm_loss": float(start)})
        metrics.close()
    scalars, _ = read_events(tmp_path)
    assert scalars["train/lm_loss"] == [(5, 0.0), (10, 0.0), (15, 10.0), (20, 10.0), (25, 10.0)]


def test_absent_tensorboard_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = []
    metrics = Metrics(tmp_path / "logs", tensorboard_dir=tmp_path / "events", config={}, say=said.append)
    metrics.training(TRAINING)
    metrics.close()
    assert len(said) == 1 and said[0].startswith("tensorboard_dir: ") and "requirements-tensorboard.txt" in said[0]
    assert lines(tmp_path / "logs") == [TRAINING]


# --- wandb


def test_wandb_gets_configuration_and_figures(wandb):
    metrics = Metrics(None, wandb={"project": "p", "name": "n", "host": "https://wandb.example"}, config={"lr": 0.1})
    metrics.training(TRAINING)
    metrics.evaluation(EVALUATION, FACTS)
    metrics.close()
    assert wandb.arguments == {"config": {"lr": 0.1}, "project": "p", "name": "n", "settings": {"base_url": "https://wandb.example"}}
    assert wandb.run.metrics == [("step", None), ("*", "step")]
    assert wandb.run.logged[0]["train/lm_loss"] == 1 / 3 and wandb.run.logged[0]["step"] == 10
    assert wandb.run.logged[1] == {"step": 10, "valid/loss/1024": 2.5, "valid/perplexity/1024": math.exp(2.5), "valid/stderr/1024": 0.01}
    assert wandb.run.finished


def test_wandb_failing_in_the_middle_is_said_once_and_switched_off(wandb, tmp_path):
    wandb.run, said = FakeRun(fails_at=2), []
    metrics = Metrics(tmp_path, wandb={}, config={}, say=said.append)
    for step in (1, 2, 3):
        metrics.training({"step": step, "lm_loss": 1.0})
    metrics.close()
    assert said == ["wandb failed and is switched off; training goes on. The reason: the network is gone."]
    assert wandb.run.calls == 2 and not wandb.run.finished
    assert [record["step"] for record in lines(tmp_path)] == [1, 2, 3]


def test_wandb_that_cannot_start_is_said_once(wandb, tmp_path):
    def init(**arguments):
        raise RuntimeError("no API key")

    wandb.init, said = init, []
    metrics = Metrics(tmp_path, wandb={}, config={}, say=said.append)
    metrics.training(TRAINING)
    metrics.close()
    assert said == ["use_wandb: nothing is logged there, because it could not be started: no API key."]
    assert lines(tmp_path) == [TRAINING]


def test_absent_wandb_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    metrics = Metrics(tmp_path, wandb={"project": "p"}, config={})
    metrics.training(TRAINING)
    metrics.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("use_wandb: ") and "requirements-wandb.txt" in said[0]


@pytest.mark.slow
def test_real_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    said = []
    metrics = Metrics(None, wandb={"project": "p"}, config={"lr": 0.1}, say=said.append)
    metrics.training(TRAINING)
    metrics.evaluation(EVALUATION, FACTS)
    metrics.close()
    assert said == [] and list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


# --- from the configuration


def test_wandb_keys():
    assert wandb_settings(LoggingConfig(wandb_project="p")) is None
    assert wandb_settings(LoggingConfig(use_wandb=True, wandb_project="p", wandb_team="t", wandb_run_name="n")) == {
        "project": "p",
        "entity": "t",
        "name": "n",
        "host": PUBLIC_SERVER,
    }


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = NullMetrics()
    metrics.training(TRAINING)
    metrics.evaluation(EVALUATION, FACTS)
    metrics.positional(POSITIONAL)
    metrics.close()
    assert list(tmp_path.iterdir()) == []
