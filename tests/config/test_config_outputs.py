"""What is made of a configuration: YAML, DeepSpeed's dictionary, the key reference; and the command line."""

from pathlib import Path

import pytest

from megatron.config import ConfigError, load_config
from megatron.config.command_line import parse_command_line
from megatron.config.deepspeed import deepspeed_config
from megatron.config.derive import complete
from megatron.config.dump import dump_yaml
from megatron.config.reference import reference
from tests.config.config_files import CONFIGS, base, write

TRICKY = [
    "6e-4",
    "010",
    "true",
    "null",
    "~",
    "yes",
    "1:30",
    "a: b",
    "# no",
    "",
    " x ",
    "[1]",
    "ünïcode",
    "it's",
    '"',
    "a\nb",
    "1_000",
    "-",
    "2024-01-01",
]


@pytest.mark.parametrize("text", TRICKY)
def test_text_survives_a_round_trip(tmp_path, text):
    config = base(tmp_path)
    config = config.model_copy(update={"logging": config.logging.model_copy(update={"wandb_group": text})})
    assert load_config([write(tmp_path, dump_yaml(config), "again.yml")]) == config


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-300, 6e-4, 1e22, 5e-324, 123456789.123456789, 1.0, 2.0**-1074, 1.7976931348623157e308])
def test_floats_survive_exactly(tmp_path, number):
    config = base(tmp_path, f"optimizer.params.lr={number!r}")
    again = load_config([write(tmp_path, dump_yaml(config), "again.yml")])
    assert again.optimizer.optimizer.params.lr == config.optimizer.optimizer.params.lr == number
    assert again == config


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["data_path=[0.3, a, 1, b]", "extra_save_iters=[3, 5]", "save=out", "checkpoint_factor=1.5", "checkpoint_scale=log"],
        ["zero_optimization={stage: 3, offload_param: {device: cpu}}", "fp16={enabled: true, loss_scale: 128}", "pos_emb=nope_c_ffn"],
    ],
)
def test_the_resolved_configuration_starts_the_same_run(tmp_path, overrides):
    config = complete(base(tmp_path, *overrides), 2, cuda=True)
    again = load_config([write(tmp_path, dump_yaml(config), "again.yml")])
    assert again == config
    assert complete(again, 2, cuda=True) == config


def test_other_yaml_readers_understand_the_dump(tmp_path):
    import yaml

    flat = yaml.safe_load(dump_yaml(base(tmp_path)))
    assert flat["optimizer"]["params"] == {"lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": None, "momentum": 0.0}


def test_deepspeed_gets_batch_clipping_and_precision(tmp_path):
    config = complete(
        base(tmp_path, "fp16={enabled: true, loss_scale: 128, hysteresis: 3}", "gas=2", "wall_clock_breakdown=true"), 2, cuda=True
    )
    settings = deepspeed_config(config, 2)
    assert settings["train_batch_size"] == 16
    assert settings["train_micro_batch_size_per_gpu"] == 4
    assert settings["gradient_accumulation_steps"] == 2
    assert settings["gradient_clipping"] == 1.0
    assert settings["fp16"]["enabled"] and settings["fp16"]["loss_scale"] == 128 and settings["fp16"]["hysteresis"] == 3
    assert settings["bf16"] == {"enabled": False}
    assert settings["wall_clock_breakdown"] is True
    assert "optimizer" not in settings and "scheduler" not in settings and "communication_data_type" not in settings
    assert deepspeed_config(complete(base(tmp_path, "fp32_allreduce=true"), 1), 1)["communication_data_type"] == "fp32"


def test_deepspeed_is_not_given_an_open_batch(tmp_path):
    with pytest.raises(ValueError, match="not completed for 2 processes"):
        deepspeed_config(base(tmp_path), 2)
    with pytest.raises(ValueError, match="not completed for 4 processes"):
        deepspeed_config(complete(base(tmp_path), 2), 4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_knows_every_key(tmp_path, stage, monkeypatch):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config as ds_config
    from deepspeed.runtime import constants
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    offload = "offload_optimizer: {device: cpu, pin_memory: true}, offload_param: {device: cpu}" if stage == 3 else "overlap_comm: true"
    config = complete(
        base(tmp_path, f"zero_optimization={{stage: {stage}, {offload}}}", "bf16.enabled=true", "fp32_allreduce=true"), 1, cuda=True
    )
    settings = deepspeed_config(config, 1)
    names = {value for value in vars(constants).values() if isinstance(value, str)} | {
        value for value in vars(ds_config).values() if isinstance(value, str)
    }
    assert [key for key in settings if key not in names | {"zero_optimization", "fp16", "bf16"}] == []
    DeepSpeedZeroConfig(**settings["zero_optimization"])  # these three forbid unknown keys
    DeepSpeedFP16Config(**settings["fp16"])
    DeepSpeedBF16Config(**settings["bf16"])
    monkeypatch.setattr(ds_config.dist, "is_initialized", lambda: False)
    whole = ds_config.DeepSpeedConfig(settings)
    assert (whole.train_batch_size, whole.zero_config.stage, whole.bfloat16_config.enabled) == (4, max(1, stage), True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a.yml", (["a.yml"], None, [], [])),
        ("-d configs 125M.yml local_setup.yml", (["125M.yml", "local_setup.yml"], "configs", [], [])),
        ("--conf_dir=configs a --set x=1 b --set=y.z=2", (["a", "b"], "configs", ["x=1", "y.z=2"], [])),
        ("a --local_rank=1 --local_rank 2", (["a"], None, [], [])),
        ("a -- --anything b", (["a"], None, [], ["--anything", "b"])),
        ("a --set x=-1", (["a"], None, ["x=-1"], [])),
        ("a --set x=1 y=2 b", (["a", "b"], None, ["x=1", "y=2"], [])),
        (
            "a --lengths 128 256 --protocols last sliding --again",
            (["a"], None, ["eval_lengths=[128, 256]", "eval_protocols=[last, sliding]", "eval_again=true"], []),
        ),
        ("--stride=4 a --lengths=8", (["a"], None, ["eval_stride=4", "eval_lengths=[8]"], [])),
    ],
)
def test_command_line(words, expected):
    paths, directory, overrides, rest = parse_command_line(words.split())
    assert (paths, directory, overrides, rest) == ([Path(path) for path in expected[0]], *expected[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no configuration file was given"),
        ("--set a=1", "no configuration file was given"),
        ("a --sett x=1", "unknown option --sett; did you mean --set?"),
        ("a --hidden-size 8", "unknown option --hidden-size"),
        ("a -d", "-d: a value must follow"),
        ("a --set", "--set: a value must follow"),
        ("a --lengths --again", "--lengths: values must follow, as in --lengths 128 256"),
        ("a --stride", "--stride: a value must follow"),
        ("a --agian", "unknown option --agian; did you mean --again?"),
    ],
)
def test_bad_command_lines(words, message):
    with pytest.raises(ConfigError, match="^" + message.replace("?", r"\?")):
        parse_command_line(words.split())


def test_help(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--help"])
    assert caught.value.code == 0 and "--set key=value" in capsys.readouterr().out


def test_the_key_reference_is_current():
    assert (CONFIGS / "neox_arguments.md").read_text() == reference(), "python -m megatron.config.reference > configs/neox_arguments.md"


@pytest.mark.parametrize(("overrides", "stage"), [([], 0), (["bf16.enabled=true"], 1), (["fp16.enabled=true"], 1)])
def test_half_precision_without_zero_runs_as_stage_1(tmp_path, overrides, stage):
    settings = deepspeed_config(complete(base(tmp_path, *overrides), 1, cuda=True), 1)
    assert settings["zero_optimization"]["stage"] == stage
