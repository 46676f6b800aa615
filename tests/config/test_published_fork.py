"""The published DAPE code's sixteen files of its 125M model at length 512 load as a user has them; the two that name no method say so.

`published_fork/` holds their option names and values (https://github.com/chuanyang-Zheng/DAPE, configs/125M/512).
"""

import subprocess
import sys
from pathlib import Path

import pytest

from megatron.config import ConfigError, load_config
from megatron.config.deepspeed import deepspeed_config
from megatron.config.derive import complete
from megatron.config.methods import resolve
from megatron.launch import exit_codes
from megatron.launch.entry import read_run
from megatron.model.count import count_parameters
from tests.config.config_files import ROOT

FOLDER = Path(__file__).with_name("published_fork")
LAYERS, HIDDEN, HEADS, D, LENGTH = 12, 768, 12, 32, 512

FIRE = 2 + 2 * D + D * HEADS + HEADS  # c, mu and the layers 1 -> D -> h
TRANSFORMER_XL = 2 * HIDDEN + HIDDEN**2
WEIGHTS = 2 * 50304 * HIDDEN + LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN  # all others; the vocabulary is padded, its head untied


def dape(channels: int, kernel: int) -> int:
    """Parameters of the two layers channels -> D -> h."""
    return channels * D * kernel + D + D * HEADS * kernel + HEADS


# file -> (the method, kernel of its map or None, FIRE's threshold in tokens, positional parameters of the model)
METHODS = {
    "125M": ("rotary", None, LENGTH // 2, 0),
    "125M_none": ("none", None, LENGTH // 2, 0),
    "125M_none_c": ("dape_none", 1, LENGTH // 2, LAYERS * dape(HEADS, 1)),
    "125M_none_capev2": ("dape_none", 3, LENGTH // 2, LAYERS * dape(HEADS, 3)),
    "125M_rpe": ("t5", None, LENGTH // 2, 32 * HEADS),
    "125M_transformer_xl": ("transformer_xl", None, LENGTH // 2, LAYERS * TRANSFORMER_XL),
    "125M_cope": ("cope", None, LENGTH // 2, LAYERS * 64 * HIDDEN // HEADS),
    "125M_alibi": ("alibi", None, 64, 0),
    "125M_alibi_c": ("dape_alibi", 1, 64, LAYERS * dape(2 * HEADS, 1)),
    "125M_alibi_capev2": ("dape_alibi", 3, 256, LAYERS * dape(2 * HEADS, 3)),
    "125M_fire": ("fire", None, 64, LAYERS * FIRE),
    "125M_fire_c": ("dape_fire", 1, 64, LAYERS * (FIRE + dape(2 * HEADS, 1))),
    "125M_kerple": ("kerple_log", None, 64, LAYERS * 2 * HEADS),
    "125M_kerple_c": ("dape_kerple_log", 1, 64, LAYERS * (2 * HEADS + dape(2 * HEADS, 1))),
}
WITHOUT_A_METHOD = ("125M_fire_capev2", "125M_kerple_capev2")  # pos-emb: capev2
IDLE = {"partition_activations", "synchronize_each_layer", "steps_per_print", "hostfile"}


def test_all_sixteen_files_are_here():
    assert sorted(path.stem for path in FOLDER.glob("*.yml")) == sorted([*METHODS, *WITHOUT_A_METHOD])
    assert len(METHODS) + len(WITHOUT_A_METHOD) == 16


@pytest.mark.parametrize("name", METHODS)
def test_a_file_is_a_complete_configuration(name):
    config = complete(load_config([FOLDER / f"{name}.yml"]), 8, cuda=True)
    assert {notice.split(": ")[1].split(" ")[0] for notice in config.notices} == IDLE
    positional, optimizer = config.positional, config.optimizer
    method, kernel, threshold, _ = METHODS[name]
    resolved = resolve(positional.pos_emb)
    assert resolved.name == method
    assert (positional.dape_kernel_size if resolved.mapped else None) == kernel
    assert (positional.dape_hidden_size, positional.fire_hidden_size, positional.fire_threshold) == (D, D, threshold)
    params = optimizer.optimizer.params
    assert (params.lr, optimizer.min_lr, optimizer.warmup, optimizer.lr_decay_iters) == (6e-4, 6e-5, 0.01, config.training.train_iters)
    assert (params.betas, params.eps, optimizer.lr_decay_style) == ((0.9, 0.95), 1e-8, "cosine")
    assert (config.training.train_batch_size, config.training.train_iters, config.precision.dtype) == (8 * 32, 50_000, "fp16")
    assert config.evaluation.eval_interval == (1000 if name == "125M_none" else 5000)
    assert deepspeed_config(config, 8)["zero_optimization"]["stage"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_file_builds_its_model(name):
    counts = count_parameters(complete(load_config([FOLDER / f"{name}.yml"]), None), 50257)
    encoding = counts["positional"] + counts["dape"]
    assert encoding == METHODS[name][-1]
    assert counts["total"] - encoding == WEIGHTS


@pytest.mark.parametrize("name", WITHOUT_A_METHOD)
def test_a_name_that_is_no_method_lists_the_candidates_with_file_line_and_key(name):
    path = FOLDER / f"{name}.yml"
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "pos-emb" in text)
    with pytest.raises(ConfigError) as caught:
        read_run([str(path)])
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: pos_emb: capev2 names no positional encoding. Nearest: ")
    nearest = message.split("Nearest: ")[1].split(". ")[0].split(", ")
    assert {"alibi_capev2", "fire_capev2", "kerple_capev2"} <= set(nearest)
    for candidate in nearest:
        read_run([str(path), "--set", "fp16.enabled=false", f"pos_emb={candidate}"])


def test_the_launcher_says_it_once_and_starts_nothing():
    path = FOLDER / "125M_kerple_capev2.yml"
    command = [sys.executable, "deepy.py", "train.py", str(path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == exit_codes.USER_ERROR
    assert "pos_emb: capev2" in done.stdout and done.stdout.count("error") == 1 and "Traceback" not in done.stdout
