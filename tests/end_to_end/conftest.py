"""Real runs: a small corpus of real text on disk, and a way to start the entry points as a user does."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
CHARACTERS = 170_000  # of text to train on


@dataclass
class Run:
    """A run's folder and configuration; `start` launches it for real."""

    folder: Path
    config: Path

    def start(self, *overrides: str, script: str = "train.py", launcher: tuple[str, ...] = ("deepy.py",)) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(*overrides, script=script, launcher=launcher), **self.options(), timeout=SECONDS)

    def popen(self, *overrides: str) -> subprocess.Popen:
        return subprocess.Popen(self.command(*overrides), **self.options())

    def command(self, *overrides: str, script: str = "train.py", launcher: tuple[str, ...] = ("deepy.py",)) -> list[str]:
        changes = ["--set", *overrides] if overrides else []
        return [sys.executable, *launcher, script, str(self.config), *changes]

    def options(self) -> dict:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        return {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "logs/metrics.jsonl").read_text().splitlines()]

    def losses(self) -> dict[int, float]:
        """Step -> loss; a later line of the same step (a resumed run) wins."""
        return {line["step"]: line["lm_loss"] for line in self.metrics() if "lm_loss" in line}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Token files of the first modules of Python's standard library, by characters: prefix of the .bin/.idx pair."""
    folder = tmp_path_factory.mktemp("corpus")
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    texts, room = [], CHARACTERS
    while room:
        texts.append(modules[len(texts)].read_text()[: min(room, 4000)])
        room -= len(texts[-1])
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    command = [sys.executable, "tools/datasets/preprocess_data.py", "--input", str(folder / "text.jsonl"), "--append-eod"]
    command += ["--tokenizer-type", "CharLevelTokenizer", "--output-prefix", str(folder / "text")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    return folder / "text_text_document"


@pytest.fixture
def make_run(tmp_path, corpus):
    """A function that writes a configuration of a tiny model (keys may be changed) into its own folder."""

    def make(name: str = "run", **changes) -> Run:
        folder = tmp_path / name
        folder.mkdir()
        keys = {
            "num_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "seq_length": 32,
            "pos_emb": "kerple_log",
            "data_path": str(corpus),
            "split": "80,10,10",
            "tokenizer_type": "CharLevelTokenizer",
            "num_workers": 0,
            "train_iters": 6,
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 1},
            "num_gpus": 2,
            "device": "cpu",
            "eval_lengths": [32, 64],
            "eval_sequences": 4,
            "eval_interval": 1000,
            "log_interval": 1,
            "save": str(folder / "checkpoints"),
            "load": str(folder / "checkpoints"),
            "log_dir": str(folder / "logs"),
            **changes,
        }
        config = folder / "run.yml"
        config.write_text(yaml.safe_dump({key: value for key, value in keys.items() if value is not None}))
        return Run(folder, config)

    return make
