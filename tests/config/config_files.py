"""Small configuration files for the tests of megatron/config."""

from pathlib import Path

from megatron.config import Config, load_config

BASE = """
num_layers: 2
hidden_size: 8
num_attention_heads: 2
seq_length: 16
train_iters: 10
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 6e-4, betas: [0.9, 0.95]}}
"""
ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


def write(folder: Path, text: str, name: str = "run.yml") -> Path:
    """A file in `folder`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def base(folder: Path, *overrides: str) -> Config:
    """The base configuration with `key=value` overrides."""
    return load_config([write(folder, BASE)], overrides)
