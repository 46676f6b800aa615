"""Every shipped YAML builds its model, on the meta device: shapes and methods are right, nothing is allocated."""

from pathlib import Path

import pytest
import torch

from megatron.config import load_config
from megatron.config.derive import complete
from megatron.model.gpt import GPT

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
ALONE = [*sorted(CONFIGS.glob("recipes/*.yml")), CONFIGS / "demo.yml", CONFIGS / "reproduce_small.yml"]
MODELS, METHODS, LENGTHS, CORPORA = (sorted(CONFIGS.glob(f"{folder}/*.yml")) for folder in ("models", "pos_emb", "train_length", "data"))
SHARED, *ABLATIONS = sorted(CONFIGS.glob("ablations/*.yml"))
SETUP, SMALL = CONFIGS / "local_setup.yml", CONFIGS / "models/125M.yml"
COMBINATIONS = [
    *([path] for path in ALONE),
    *([SHARED, path] for path in ABLATIONS),
    *([path, SETUP] for path in MODELS),
    *([SMALL, method, LENGTHS[0], SETUP] for method in METHODS),
    *([SMALL, METHODS[0], length, CORPORA[0]] for length in LENGTHS),
    *([SMALL, METHODS[0], LENGTHS[0], corpus] for corpus in CORPORA),
]


@pytest.mark.parametrize("paths", COMBINATIONS, ids=lambda paths: "+".join(path.stem for path in paths))
def test_builds(paths):
    config = complete(load_config(paths), None)
    with torch.device("meta"):
        model = GPT(config, 50257)
    assert len(model.layers) == config.model.num_layers
    assert model.embedding.word_embeddings.weight.shape == (50304, config.model.hidden_size)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_no_file_is_left_out():
    used = {path for paths in COMBINATIONS for path in paths}
    assert set(CONFIGS.rglob("*.yml")) == used
