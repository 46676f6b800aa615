"""Every shipped YAML file is, or is part of, a complete configuration."""

import re
import shlex

import pytest

from megatron.config import load_config
from megatron.config.command_line import parse_command_line
from megatron.config.deepspeed import deepspeed_config
from megatron.config.derive import complete
from megatron.config.dump import dump_yaml
from megatron.config.methods import DAPE_OPTIONS, resolve
from tests.config.config_files import CONFIGS, write

SHARED = "ablations/dape_125M.yml"


def files(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (CONFIGS / folder).glob("*.yml"))


def check(names: list[str], folder, overrides=()) -> None:
    config = load_config(names, overrides, str(CONFIGS))
    assert config.notices == config.positional.warnings()
    config = complete(config, 2, cuda=True)
    deepspeed_config(config, 2)
    resolve(config.positional.pos_emb)
    assert load_config([write(folder, dump_yaml(config))]) == config


def test_no_file_is_left_out():
    known = {"models", "pos_emb", "train_length", "data", "recipes", "ablations"}
    assert {path.name for path in CONFIGS.iterdir() if path.is_dir()} == known
    assert all(files(folder) for folder in known)
    assert {path.name for path in CONFIGS.glob("*.yml")} == {"local_setup.yml", "demo.yml", "reproduce_small.yml"}


@pytest.mark.parametrize("name", files("models"))
def test_models_with_local_setup(name, tmp_path):
    check([name.removeprefix("models/"), "local_setup.yml"], tmp_path)


@pytest.mark.parametrize("name", files("pos_emb"))
def test_positional_encodings(name, tmp_path):
    check(["125M", name, "local_setup"], tmp_path)
    keys = load_yaml(name)
    method = resolve(keys.pop("pos_emb"))
    assert set(keys) <= {*method.method.options, *(DAPE_OPTIONS if method.mapped else ())}


@pytest.mark.parametrize("name", files("train_length"))
def test_training_lengths(name, tmp_path):
    check(["125M", "pos_emb/kerple_log", name, "local_setup"], tmp_path)


@pytest.mark.parametrize("name", files("data"))
def test_corpora(name, tmp_path):
    check(["350M", "pos_emb/dape_v2_fire", "train_length/512", name], tmp_path)


@pytest.mark.parametrize("name", [*files("recipes"), "demo.yml", "reproduce_small.yml"])
def test_recipes_are_whole(name, tmp_path):
    check([name], tmp_path)


@pytest.mark.parametrize("name", [name for name in files("ablations") if name != SHARED])
def test_ablations_are_whole_with_what_they_share(name, tmp_path):
    check([SHARED, name], tmp_path)
    config, own = load_config([SHARED, name], (), str(CONFIGS)), name.removeprefix("ablations/").removesuffix(".yml")
    assert {config.checkpoint.save, config.checkpoint.load} == {f"checkpoints/ablations/{own}"}
    assert config.positional.dape_information_leakage == (own == "information_leakage")
    what, _, value = own.partition("_")
    varied = {"hidden": config.positional.dape_hidden_size, "kernel": config.positional.dape_kernel_size, "length": config.model.seq_length}
    assert what not in varied or varied[what] == int(value)


def test_ablations_vary_what_the_papers_varied():
    names = {name.removeprefix("ablations/").removesuffix(".yml") for name in files("ablations")}
    varied = {"hidden": (4, 10, 16, 32, 64), "kernel": (1, 3, 5, 7), "length": (128, 512, 1024)}
    expected = {f"{what}_{value}" for what, values in varied.items() for value in values} | {"dape_125M", "information_leakage"}
    forms = {load_yaml(f"ablations/{name}.yml")["dape_form"] for name in names - expected}
    assert expected <= names and forms == {"s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)"} and len(names - expected) == 3


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_the_batch_of_the_papers_does_not_depend_on_the_number_of_processes(processes):
    for name, batch in (("recipes/dape_125M_512", 256), ("recipes/kerple_162M_arxiv", 32)):
        assert complete(load_config([name], (), str(CONFIGS)), processes).training.train_batch_size == batch


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("125M", (12, 768, 12)),
        ("350M", (24, 1024, 16)),
        ("760M", (24, 1536, 16)),
        ("1-3B", (24, 2048, 16)),
        ("2-7B", (32, 2560, 32)),
        ("6-7B", (32, 4096, 32)),
        ("13B", (40, 5120, 40)),
        ("20B", (44, 6144, 64)),
    ],
)
def test_shapes(name, shape):
    model = load_config([name], (), str(CONFIGS)).model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == shape
    assert model.gpt_j_residual == (name == "20B")


def test_commands_of_the_readme(tmp_path):
    commands = re.findall(r"^python deepy.py train.py (.+)$", (CONFIGS / "README.md").read_text(), re.M)
    assert len(commands) == 3
    for command in commands:
        paths, directory, overrides, _ = parse_command_line(shlex.split(command))
        assert directory == "configs"
        check([str(path) for path in paths], tmp_path, overrides)


def load_yaml(name: str) -> dict:
    import yaml

    return yaml.safe_load((CONFIGS / name).read_text())
