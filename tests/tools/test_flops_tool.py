"""tools/benchmark/flops.py as users call it, against torch's own counter of the matrix products of each module."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from megatron.config import load_config
from megatron.model.gpt import GPT

ROOT = Path(__file__).resolve().parents[2]
LAYERS, LENGTH, VOCABULARY, BATCH = 3, 20, 64, 2
KEYS = {
    "num_layers": LAYERS,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": LENGTH,
    "pos_emb": "dape_kerple",
    "dape_hidden_size": 6,
    "make_vocab_size_divisible_by": VOCABULARY,
    "attention_backend": "eager",
    "train_iters": 1,
    "train_micro_batch_size_per_gpu": 1,
    "data_path": "data/none",
    "tokenizer_type": "CharLevelTokenizer",
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
}


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "run.yml").write_text(json.dumps(KEYS))
    return tmp_path / "run.yml"


def call(*arguments):
    command = [sys.executable, "tools/benchmark/flops.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_each_part_is_what_torch_counts_in_its_modules(run_file, tmp_path):
    """`eager` works on all n keys of a query, the map included, of which (n + 1) / 2 are counted for the map."""
    done = call(run_file, "--vocabulary", VOCABULARY, "--measure", "--repeats", 1, "--threads", 1, "--output", tmp_path / "flops.json")
    assert done.returncode == 0, done.stderr
    [at_length] = json.loads((tmp_path / "flops.json").read_text())["lengths"]
    forward = {row["part"]: row["forward_flops"] * BATCH * LENGTH for row in at_length["parts"]}
    model = GPT(load_config([run_file]), VOCABULARY)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(VOCABULARY, (BATCH, LENGTH)))

    def counted(module: str) -> int:
        return sum(sum(ops.values()) for name, ops in counter.get_flop_counts().items() if name.endswith(module))

    layers = range(LAYERS)
    maps = sum(counted(f"GPT.layers.{layer}.attention.positional.score_map") for layer in layers)
    projections = sum(counted(f"GPT.layers.{layer}.attention.{part}") for layer in layers for part in ("query_key_value", "output"))
    assert forward["dape"] * 2 * LENGTH / (LENGTH + 1) == maps > 0
    assert forward["attention"] == projections > 0
    assert forward["scores"] == sum(counted(f"GPT.layers.{layer}.attention") for layer in layers) - projections - maps > 0
    assert forward["mlp"] == sum(counted(f"GPT.layers.{layer}.mlp") for layer in layers) > 0
    assert forward["head"] == counted("GPT.head") > 0
    assert forward["embedding"] == forward["norms"] == forward["positional"] == 0
    assert at_length["total"]["training_flops"] == 3 * at_length["total"]["forward_flops"]
    parameters = {row["part"]: row["parameters"] for row in at_length["parts"]}
    assert parameters["dape"] == LAYERS * (8 * 6 + 6 + 6 * 4 + 4)
    assert sum(parameters.values()) == at_length["total"]["parameters"] == sum(p.numel() for p in model.parameters())
    mapped, plain = at_length["measured"]
    assert (mapped["pos_emb"], plain["pos_emb"]) == ("dape_kerple_log", "kerple_log") and mapped["measured"] == "whole model"
    assert mapped["map_share_of_time"] == 1 - plain["seconds"] / mapped["seconds"]
    assert mapped["map_share_of_flops"] == pytest.approx(at_length["dape"]["flops_share"])


def test_scaled_times_say_so_and_lengths_share_one_table(run_file, tmp_path):
    options = ("--vocabulary", VOCABULARY, "--set", "pos_emb=alibi", "--lengths", 8, 16, "--measure", "--whole-below", 0, "--repeats", 1)
    done = call(run_file, *options, "--threads", 1, "--output", tmp_path / "flops.json")
    assert done.returncode == 0, done.stderr
    lengths = json.loads((tmp_path / "flops.json").read_text())["lengths"]
    assert [each["length"] for each in lengths] == [8, 16] and lengths[0]["dape"] is None
    assert [row["measured"] for each in lengths for row in each["measured"]] == ["3 layers, scaled from 1 and 2"] * 2
    scores = [row["forward_flops"] for each in lengths for row in each["parts"] if row["part"] == "scores"]
    assert scores[1] == 2 * scores[0]


def test_mistakes_are_one_message(run_file, tmp_path):
    for arguments, message in (
        ((tmp_path / "absent.yml",), "absent.yml: no such file"),
        ((run_file, "--set", "pos_emb=learned", "--lengths", "64", "--measure"), "max_position_embeddings"),
        ((run_file, "--lengths", "0"), "'0' is not a whole number from 1 on"),
    ):
        done = call(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
