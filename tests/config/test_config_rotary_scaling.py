"""The block `rotary_scaling`, the spellings of transformers, and how far xPos reaches."""

import pytest

from megatron.config import ConfigError, load_config
from megatron.config.derive import complete
from megatron.config.dump import dump_yaml
from megatron.config.positional import RotaryScaling
from tests.config.config_files import write

KEYS = ["num_layers=1", "hidden_size=32", "num_attention_heads=4", "seq_length=16", "train_iters=1", "train_micro_batch_size_per_gpu=1"]
OPTIMIZER = ["optimizer={type: Adam, params: {lr: 1e-3}}"]
LONGROPE = "type: longrope, factor: 4.0, short_factor: [1, 1, 1, 1]"


def completed(*keys: str):
    return complete(load_config([], [*KEYS, *OPTIMIZER, *keys]), 1)


@pytest.mark.parametrize("pos_emb", ["rotary", "rope", "xpos", "dape_rotary", "dape_xpos"])
def test_the_original_length_is_the_training_length(tmp_path, pos_emb):
    for block, length in (("type: dynamic", 16), ("type: yarn, original_length: 8", 8), ("type: linear", None)):
        config = completed(f"pos_emb={pos_emb}", f"rotary_scaling={{factor: 2, {block}}}")
        assert config.positional.rotary_scaling.original_length == length
        again = load_config([write(tmp_path, dump_yaml(config))])
        assert again == config == complete(again, 1)


def test_spellings_of_transformers():
    wanted = RotaryScaling(type="yarn", factor=4.0, original_length=8)
    for block in ("rope_scaling", "rotary_scaling"):
        for kind in ("type", "rope_type"):
            config = completed("pos_emb=rotary", f"{block}={{{kind}: yarn, factor: 4.0, original_max_position_embeddings: 8}}")
            assert config.positional.rotary_scaling == wanted
    assert completed("pos_emb=none", "rope_scaling={rope_type: default}").positional.rotary_scaling == RotaryScaling()
    config = completed("pos_emb=rotary", f"rope_scaling={{{LONGROPE}, long_factor: [1, 2, 3, 4]}}".replace("longrope", "su"))
    assert config.positional.rotary_scaling.type == "longrope"


@pytest.mark.parametrize(
    ("pos_emb", "block", "key", "words"),
    [
        ("alibi", "type: linear, factor: 2", "rotary_scaling.type", "pos_emb: alibi does not rotate"),
        ("dape_kerple", "factor: 2", "rotary_scaling.factor", "does not rotate"),
        ("rotary", "type: linear", "rotary_scaling.factor", "is missing: type linear needs it"),
        ("rotary", "type: linear, factor: 0.5", "rotary_scaling.factor", "at least 1, not 0.5"),
        ("rotary", "factor: 2", "rotary_scaling.factor", "no effect with type none, only with linear, ntk, dynamic, yarn, longrope"),
        ("rotary", "type: linear, factor: 2, original_length: 8", "rotary_scaling.original_length", "no effect with type linear"),
        ("rotary", "type: ntk, factor: 2, beta_fast: 8", "rotary_scaling.beta_fast", "no effect with type ntk, only with yarn"),
        ("rotary", "type: yarn, factor: 2, long_factor: [1, 1, 1, 1]", "rotary_scaling.long_factor", "only with longrope"),
        ("rotary", "type: dynamic, factor: 2, attention_factor: 1.1", "rotary_scaling.attention_factor", "only with yarn, longrope"),
        ("rotary", "type: yarn, factor: 2, beta_slow: 40", "rotary_scaling.beta_slow", "less than beta_fast 32"),
        ("rotary", LONGROPE, "rotary_scaling.long_factor", "is missing: type longrope needs it"),
        ("dape_rope", f"{LONGROPE}, long_factor: [1, 2, 3]", "rotary_scaling.long_factor", "3 factors for 4 pairs"),
        ("rotary", f"{LONGROPE}, long_factor: [1, 2, 3, 0]", "rotary_scaling.long_factor", "from 0.001 to 1,000,000"),
        ("rotary", "type: ntk, factor: 1e300", "rotary_scaling.factor", "at most 1000000"),
        ("rotary", "type: yarn, factor: 2, beta_slow: 1e-320", "rotary_scaling.beta_slow", "at least 0.001"),
        ("rotary", "type: yarn, factor: 2, attention_factor: 1e300", "rotary_scaling.attention_factor", "at most 1000"),
        ("rotary", "type: llama3, factor: 2", "rotary_scaling.type", "one of"),
        ("rotary", "type: linear, factr: 2", "factr", "did you mean factor"),
    ],
)
def test_impossible_blocks(pos_emb, block, key, words):
    with pytest.raises(ConfigError) as caught:
        completed(f"pos_emb={pos_emb}", f"rotary_scaling={{{block}}}")
    assert key in str(caught.value) and words in str(caught.value)


def test_what_the_rotating_width_and_the_base_rule_out():
    for keys, words in (
        (["rotary_pct=0.25", "rotary_scaling={type: ntk, factor: 2}"], "rotary_scaling.type: ntk needs at least 4"),
        (["rotary_pct=0.5", f"rotary_scaling={{{LONGROPE}, long_factor: [1, 1]}}"], "rotary_scaling.short_factor: 4 factors for 2 pairs"),
        (["rotary_emb_base=1", "rotary_scaling={type: yarn, factor: 2}"], "rotary_emb_base: must be more than 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            completed("pos_emb=rotary", *keys)
        assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_how_far_xpos_reaches():
    assert completed("pos_emb=xpos", "seq_length=512", "precision=fp16").evaluation.eval_lengths == [512, 1024, 2048, 4096]
    assert completed("pos_emb=xpos", "seq_length=2048").evaluation.eval_lengths[-1] == 32768
    assert completed("pos_emb=rotary", "seq_length=8192", "precision=fp16").evaluation.eval_lengths[-1] == 131072
    for keys, words in (
        (["seq_length=8192", "precision=fp16"], "seq_length: 8192 positions: pos_emb: xpos with xpos_scale_base 512"),
        (["eval_lengths=[16, 8192]", "precision=fp16"], "eval_lengths: 8192 positions"),
        (["eval_lengths=[16, 65536]", "precision=bfloat16"], "eval_lengths: 65536 positions"),
    ):
        with pytest.raises(ConfigError) as caught:
            completed("pos_emb=xpos", *keys)
        assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1
        completed("pos_emb=xpos", *keys, "xpos_scale_base=4096")
