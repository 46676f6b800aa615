"""Under ZeRO-3 the parameters of every part, positional encodings included, are there when they are used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SHAPE = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "train_iters": 1, "hidden_dropout": 0.1}
VARIANTS = [
    {"pos_emb": "learned"},
    {"pos_emb": "kerple", "checkpoint_activations": True},
    {"pos_emb": "kerple", "kerple_shared": True},
    {"pos_emb": "dape_kerple", "no_weight_tying": True, "activation": "swiglu", "norm": "rmsnorm", "attention_dropout": 0.1},
]


@pytest.mark.slow
def test_sharded_training_is_plain_training() -> None:
    root = Path(__file__).parents[2]
    required = {"optimizer.type": "Adam", "optimizer.params.lr": 0.01}
    overrides = [[f"{key}={json.dumps(value)}" for key, value in (SHAPE | required | keys).items()] for keys in VARIANTS]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(Path(__file__).with_name("sharded_steps.py")), json.dumps(overrides)]
    run = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]
    [line] = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    for plain, sharded in json.loads(line.removeprefix("RESULT")):
        assert len(set(plain)) == 3
        torch.testing.assert_close(torch.tensor(sharded), torch.tensor(plain), atol=2e-5, rtol=0)
