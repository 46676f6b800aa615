"""Reading, merging and overriding configuration files."""

import re

import pytest

from megatron.config import ConfigError, load_config
from tests.config.config_files import BASE, base, write


def message(call, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


def test_flat_keys_reach_their_groups(tmp_path):
    config = base(tmp_path)
    assert config.model.num_layers == 2
    assert config.training.train_iters == 10
    assert config.optimizer.optimizer.params.lr == 6e-4
    assert config.optimizer.optimizer.params.betas == (0.9, 0.95)
    assert config.positional.pos_emb == "learned"


def test_json_style_with_comments_trailing_commas_and_dashes(tmp_path):
    text = """# a comment
{
  "num-layers": 2, # another
  "hidden-size": 8, "num_attention-heads": 2, "seq-length": 16,
  "train-iters": 10,
  "optimizer": {"type": "Adam", "params": {"lr": 6e-4, "betas": [0.9, 0.95,], "eps": 1.0e-8,},},
  "zero-optimization": {"stage": 1, "overlap-comm": True,},
}
"""
    config = load_config([write(tmp_path, text)])
    assert config.model.hidden_size == 8
    assert config.optimizer.zero_optimization.overlap_comm is True
    assert config.optimizer.optimizer.params.lr == 0.0006


@pytest.mark.parametrize(
    ("written", "number"),
    [("6e-4", 6e-4), ("6E-4", 6e-4), ("1e0", 1.0), ("6.e-4", 6e-4), (".5", 0.5), ("1", 1.0), ("+1.5e+1", 15.0), ("2.", 2.0)],
)
def test_numbers_are_numbers(tmp_path, written, number):
    value = base(tmp_path, f"optimizer.params.lr={written}").optimizer.optimizer.params.lr
    assert value == number
    assert isinstance(value, float)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("hidden_size=8.0", "write 8"),
        ("hidden_size='8'", "without quotes"),
        ("hidden_size=true", "a whole number, not true"),
        ("hidden_size=010", "a whole number"),  # octal in YAML 1.1
        ("hidden_size=1:30", "a whole number"),  # 90 in YAML 1.1
        ("hidden_size=null", "a whole number, not null"),
        ("hidden_size={a: 1}", "a block of keys"),
        ("hidden_size=[8]", "a whole number, not [8]"),
        ("train_iters=1e5", "write 100000"),
        ("no_weight_tying='true'", "write true or false, without quotes"),
        ("no_weight_tying=yes", "write true or false"),
        ("no_weight_tying=1", "true or false, not 1"),
        ("optimizer.params.lr='6e-4'", "write it without quotes"),
        ("optimizer.params.lr=true", "a number, not true"),
        ("optimizer.params.lr=.nan", "finite"),
        ("optimizer.params.lr=.inf", "finite"),
        ("optimizer.params.betas=0.9", "a list of two numbers"),
        ("optimizer.params.betas=[0.9]", "a list of two numbers"),
        ("optimizer.params.betas=[0.9, '0.95']", "a list of two numbers"),
        ("optimizer.params=3", "a block of keys"),
        ("zero_optimization.stage=true", "a whole number, not true"),
        ("zero_optimization.stage=4", "at most 3, not 4"),
        ("save=2024-01-01", None),
        ("pos_emb=3", "put it in quotes"),
        ("norm=layernrom", "did you mean layernorm?"),
        ("norm=scalenorm", 'one of "layernorm", "rmsnorm"'),
        ("num_layers=0", "at least 1, not 0"),
        ("hidden_dropout=1.0", "less than 1, not 1.0"),
        ("eval_lengths=[]", "empty list"),
        ("eval_lengths=[16, 'x']", "a list of whole numbers"),
        ("eval_protocols=[las]", "a list of texts out of last, non_overlapping, sliding"),
        ("train_data_paths=a", 'write ["a"]'),
        ("checkpoint_factor=-1", "more than 0, not -1"),
        ("checkpoint_factor=x", "a number or null"),
        ("use_checkpoint_lr_scheduler=true", "only false is supported"),
        ("fp16.fp16=false", "only true is supported"),
        ("num_layers=99999999999999999999999", "at most 1000000, not 99999999999999999999999"),
        ("hidden_size=10000001", "at most 10000000, not 10000001"),
        ("seq_length=99999999999999999999999", "at most 10000000"),
        ("train_iters=99999999999999999999999", "at most 1000000000000"),
        ("seed=9223372036854775808", "at most 9223372036854775807"),
        ("save=''", "must not be an empty text"),
        ("load=''", "must not be an empty text"),
        ("log_dir=''", "must not be an empty text"),
        ("vocab_file=''", "must not be an empty text"),
    ],
)
def test_wrong_values_are_refused_in_plain_words(tmp_path, override, expected):
    if expected is None:  # a date is text, not a datetime
        assert base(tmp_path, override).checkpoint.save == "2024-01-01"
        return
    text = message(base, tmp_path, override)
    key = override.partition("=")[0]
    assert text.startswith(f"--set: {key}") and expected in text, text
    assert "\n" not in text
    assert "pydantic" not in text and "Input should" not in text


def test_a_number_may_be_an_int_but_a_bool_is_neither(tmp_path):
    assert base(tmp_path, "min_lr=0", "optimizer.params.lr=1").optimizer.optimizer.params.lr == 1.0


def test_everything_wrong_is_reported_at_once_with_file_line_and_key(tmp_path):
    first = write(tmp_path, BASE + "hidden-dropout: '0.1'\nno_such_key: 1\nzero_optimization:\n  stage: 1\n  overlap_com: true\n", "a.yml")
    second = write(tmp_path, "\n\nattention_dropout: 2\n", "b.yml")
    lines = message(load_config, [first, second], ["seed=-1"]).splitlines()
    assert len(lines) == 5
    for expected in (
        f"{first}:10: unknown key no_such_key",
        f"{first}:13: unknown key zero_optimization.overlap_com; did you mean overlap_comm?",
        f"{first}:9: hidden-dropout: must be a number",
        f"{second}:3: attention_dropout: must be less than 1, not 2.",
        "--set: seed: must be at least 0, not -1.",
    ):
        assert any(line.startswith(expected) for line in lines), (expected, lines)


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("hiden_size: 8", "hidden_size"),
        ("optimiser: {}", "optimizer"),
        ("optimizer: {type: Adam, params: {lr: 1, learning_rate: 1}}", None),
        ("optimizer: {typ: Adam, params: {lr: 1}}", "type"),
        ("fp16: {enable: true}", "enabled"),
        ("zero_optimization: {offload_optimizer: {devic: cpu}}", "device"),
        ("gradient_accumulation_step: 1", "gradient_accumulation_steps"),
    ],
)
def test_unknown_keys_name_the_nearest(tmp_path, written, near):
    text = message(load_config, [write(tmp_path, written)])
    line = next(line for line in text.splitlines() if "unknown key" in line)
    assert re.match(rf"{re.escape(str(tmp_path / 'run.yml'))}:1: unknown key ", line)
    assert near is None or f"did you mean {near}" in line


def test_missing_keys_are_named_with_their_files(tmp_path):
    text = message(load_config, [write(tmp_path, "num_layers: 2\noptimizer: {type: Adam}")])
    assert f"{tmp_path / 'run.yml'}: the key hidden_size is missing: Width of the residual stream." in text
    assert "optimizer.params" in text


def test_the_same_value_twice_is_fine_and_two_values_name_both_places(tmp_path):
    first = write(tmp_path, BASE, "a.yml")
    assert (
        load_config(
            [first, write(tmp_path, "hidden-size: 8\nmin_lr: 0.0\n", "b.yml"), write(tmp_path, "min-lr: 0", "c.yml")]
        ).model.hidden_size
        == 8
    )
    second = write(tmp_path, "\nhidden-size: 16\n", "d.yml")
    text = message(load_config, [first, second])
    assert text.startswith(f"{first}:3 and {second}:2: hidden-size has two values, 8 and 16;")


def test_true_is_not_the_same_as_1(tmp_path):
    first, second = write(tmp_path, BASE + "seed: 1", "a.yml"), write(tmp_path, "seed: true", "b.yml")
    assert "two values, 1 and true" in message(load_config, [first, second])


def test_blocks_merge_key_by_key(tmp_path):
    first = write(tmp_path, BASE + "zero_optimization: {stage: 1}", "a.yml")
    second = write(tmp_path, "zero_optimization: {overlap_comm: true, stage: 1}", "b.yml")
    zero = load_config([first, second]).optimizer.zero_optimization
    assert zero.stage == 1 and zero.overlap_comm
    third = write(tmp_path, "zero_optimization: {stage: 2}", "c.yml")
    assert "zero_optimization.stage has two values, 1 and 2" in message(load_config, [first, third])
    fourth = write(tmp_path, "zero_optimization: 3", "d.yml")
    assert "a value and a block of keys" in message(load_config, [first, fourth])


def test_two_names_of_one_key_conflict_too(tmp_path):
    first = write(tmp_path, BASE + "gas: 2", "a.yml")
    assert load_config([first, write(tmp_path, "gradient-accumulation_steps: 2", "b.yml")]).training.gradient_accumulation_steps == 2
    text = message(load_config, [first, write(tmp_path, "gradient_accumulation_steps: 3", "c.yml")])
    assert "two values, 2 and 3" in text
    text = message(load_config, [write(tmp_path, BASE + "gas: 2\ngradient_accumulation_steps: 3", "d.yml")])
    assert "is another name of gas" in text


@pytest.mark.parametrize("again", ["hidden_size: 8", "hidden-size: 8"])
def test_a_key_twice_in_one_file_is_an_error(tmp_path, again):
    text = message(load_config, [write(tmp_path, BASE + again)])
    assert text == f"{tmp_path / 'run.yml'}:9: {again.split(':')[0]} is there twice: first in line 3; keep one."


def test_a_key_twice_in_a_block_is_an_error(tmp_path):
    text = message(load_config, [write(tmp_path, BASE + "fp16:\n  enabled: true\n  enabled: false\n")])
    assert ":11: fp16.enabled is there twice: first in line 10" in text


def test_overrides_win_reach_into_blocks_and_settle_conflicts(tmp_path):
    first, second = write(tmp_path, BASE, "a.yml"), write(tmp_path, "hidden_size: 16", "b.yml")
    config = load_config([first, second], ["hidden-size=32", "optimizer.params.lr=1e-3", "split=1,2,3", "zero-optimization={stage: 2}"])
    assert config.model.hidden_size == 32
    assert config.optimizer.optimizer.params.lr == 1e-3
    assert config.optimizer.optimizer.params.betas == (0.9, 0.95)
    assert config.data.split == "1,2,3"
    assert config.optimizer.zero_optimization.stage == 2


def test_the_last_override_wins_and_a_block_replaces_the_block(tmp_path):
    config = base(tmp_path, "seed=1", "seed=2", "optimizer.params={lr: 1.0}")
    assert config.training.seed == 2
    assert config.optimizer.optimizer.params.betas == (0.9, 0.999)
    assert base(tmp_path, "load=").checkpoint.load is None
    assert base(tmp_path, "gas=3", "gradient_accumulation_steps=5").training.gradient_accumulation_steps == 5


@pytest.mark.parametrize("override", ["seed", "=3", "seed.=3", "optimizer={type: [", "seed=a: b"])
def test_bad_overrides(tmp_path, override):
    assert message(base, tmp_path, override).startswith(f"--set {override}: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ": the file is empty"),
        (b"# only a comment\n", ": the file is empty"),
        (b"- a\n- b\n", ":1: the file holds a list"),
        (b"\nhello\n", ":2: the file holds a single value"),
        (b"a: 1\n b: 2\n", ":2: not valid YAML"),
        (b'{"a": 1 "b": 2}', ":1: not valid YAML"),
        (b"{\n\t'a': 1 }\n", ":2: not valid YAML"),
        (b"a: 1\nb: \xff\xfe\n", ":2: not valid UTF-8"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"a: \x00\n", "not valid YAML: character U+0000 is not allowed"),
        (b"a: !!python/object:os.system x\n", "not valid YAML"),
        (b"a: !!binary aGk=\n", ":1: not valid YAML: the tag tag:yaml.org,2002:binary is not supported"),
        (b"a: 1\nb: !!int x\n", ":2: not valid YAML: 'x' is not a value of type int"),
        (b'a: "\\ud800"\n', ":1: not valid YAML: half of a surrogate pair"),
        (b"a: &x {b: *x}\n", "contains itself"),
        (b"a: &x [*x]\n", "contains itself"),
        (b"1: 2\n", ":1: a key must be a name"),
        (b"[a, b]: 2\n", ":1: a key must be a name"),
        (b'seed: 1\n"": 2\n', ":2: a key must be a name, not ''"),
        (b"optimizer.params.lr: 1\n", ":1: optimizer.params.lr: a key holds no dots here; nest it: optimizer: {params: {lr: ...}}."),
        (b"optimizer: {params.lr: 1}\n", ":1: optimizer.params.lr: a key holds no dots here; nest it: params: {lr: ...}."),
        (b"seed: " + b"[" * 600 + b"]" * 600, "nested too deeply"),
    ],
)
def test_bad_files_have_one_clear_message(tmp_path, content, expected):
    path = tmp_path / "bad.yml"
    path.write_bytes(content)
    lines = message(load_config, [path]).splitlines()
    assert any(line.startswith(str(path)) and expected in line for line in lines), lines
    assert not any("is missing" in line for line in lines if "a key " not in lines[0])


def test_a_byte_order_mark_and_crlf_are_fine(tmp_path):
    path = tmp_path / "windows.yml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_config([path]).model.hidden_size == 8


def test_problems_of_one_file_do_not_hide_those_of_another(tmp_path):
    bad, other = write(tmp_path, "a: [", "a.yml"), write(tmp_path, "hiden_size: 1", "b.yml")
    text = message(load_config, [bad, other, tmp_path / "missing.yml"])
    assert "a.yml:1: not valid YAML" in text and "unknown key hiden_size" in text and "missing.yml: no such file" in text


def test_files_are_found_without_ending_and_in_sub_folders(tmp_path):
    write(tmp_path, BASE, "models/tiny.yml")
    write(tmp_path, "seed: 5", "setup.yml")
    config = load_config(["tiny", "setup.yml"], directory=str(tmp_path))
    assert config.training.seed == 5
    assert load_config(["models/tiny", "setup"], directory=str(tmp_path)) == config
    assert load_config([tmp_path / "models" / "tiny"], ["seed=5"]) == config


def test_missing_and_ambiguous_files(tmp_path):
    write(tmp_path, BASE, "a/tiny.yml")
    write(tmp_path, BASE, "b/tiny.yml")
    text = message(load_config, ["tiny.yml"], (), str(tmp_path))
    assert "2 files of this name" in text and "a/tiny.yml" in text and "b/tiny.yml" in text
    assert "Did you mean tiny" in message(load_config, ["tinny.yml"], (), str(tmp_path))
    assert "no such folder" in message(load_config, ["tiny"], (), str(tmp_path / "nowhere"))
    assert "is a folder" in message(load_config, [tmp_path / "a"])
    assert "Did you mean tiny" in message(load_config, [tmp_path / "a" / "tiny2.yml"])
    assert "no configuration file" in message(load_config, [])


def test_where_a_key_came_from_is_kept_apart_from_what_it_says(tmp_path):
    config = base(tmp_path, "seed=1234")
    assert config.where("optimizer.params.lr") == f"{tmp_path / 'run.yml'}:8"
    assert config.where("seed") == "--set"
    assert config.where("min_lr") == ""
    assert config == base(tmp_path)
    assert config.model_copy().where("seed") == "--set"
    assert "_origins" not in config.model_dump()


def test_a_config_cannot_be_changed(tmp_path):
    config = base(tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        config.model.hidden_size = 9
