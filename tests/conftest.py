"""Small models from flat keys."""

import json
from collections.abc import Callable

import pytest
import torch

from megatron.config import Config
from megatron.config.load import load_config
from megatron.model.gpt import GPT
from megatron.model.init import initialise

VOCABULARY = 61
TINY = {
    "num_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "seq_length": 16,
    "max_position_embeddings": 32,
    "pos_emb": "rotary",
    "bipe_segment_tokens": list(range(0, 61, 4)),
    "bipe_segment_length": 3,
    "make_vocab_size_divisible_by": 16,
    "train_iters": 1,
    "optimizer.type": "Adam",
    "optimizer.params.lr": 0.001,
}


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """Flat keys that differ from TINY -> Config."""
    return lambda **keys: load_config([], [f"{key}={json.dumps(value)}" for key, value in (TINY | keys).items()])


@pytest.fixture
def make_model(make_config) -> Callable[..., GPT]:
    """Flat keys -> an initialised float64 model in evaluation mode, with weights so large that attention is far from uniform."""

    def make(seed: int = 7, **keys) -> GPT:
        config = make_config(**({"init_method_std": 0.2} | keys))
        model = GPT(config, VOCABULARY).double().eval()
        initialise(model, config.model, seed)
        return model

    return make


@pytest.fixture
def tokens() -> torch.Tensor:
    """[2, 12]."""
    return torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(5))
