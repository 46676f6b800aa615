"""Parameter counts of GPT-NeoX's standard shapes, against a formula and against figures worked out by hand."""

import pytest

from megatron.model.count import count_parameters

# layers, hidden, heads; total untied, total tied (vocabulary 50257 padded to 50304, layernorm, biases, rotary).
# A block has 12 h^2 + 13 h, the final norm 2 h, each embedding 50304 h. 125M to 2.7B untied are Pythia's published totals as well.
SIZES = {
    "125M": (12, 768, 12, 162_322_944, 123_689_472),
    "350M": (24, 1024, 16, 405_334_016, 353_822_720),
    "760M": (24, 1536, 16, 834_493_440, 757_226_496),
    "1.3B": (24, 2048, 16, 1_414_647_808, 1_311_625_216),
    "2.7B": (32, 2560, 32, 2_775_208_960, 2_646_430_720),
    "6.7B": (32, 4096, 32, 6_856_253_440, 6_650_208_256),
    "13B": (40, 5120, 40, 13_100_697_600, 12_843_141_120),
    "20B": (44, 6144, 64, 20_552_994_816, 20_243_927_040),
}


@pytest.mark.parametrize("size", SIZES)
def test_standard_sizes(make_config, size: str) -> None:
    layers, hidden, heads, untied, tied = SIZES[size]
    shape = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "make_vocab_size_divisible_by": 128}
    counts = count_parameters(make_config(**shape, no_weight_tying=True), 50257)
    table = 50304 * hidden
    assert counts == {
        "embedding": table,
        "attention": layers * (4 * hidden**2 + 4 * hidden),
        "positional": 0,
        "dape": 0,
        "mlp": layers * (8 * hidden**2 + 5 * hidden),
        "norms": layers * 4 * hidden + 2 * hidden,
        "head": table,
        "total": untied,
    }
    assert layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden + 2 * table == untied
    counts = count_parameters(make_config(**shape), 50257)
    assert counts["head"] == 0 and counts["total"] == tied == untied - table


def test_gpt_neox_20b(make_config) -> None:
    """The released GPT-NeoX-20B: two tensor-parallel processes pad its vocabulary to 50432; 20,554,567,680 parameters."""
    shape = {"num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "make_vocab_size_divisible_by": 128, "pos_emb": "rotary"}
    config = make_config(**shape, no_weight_tying=True, model_parallel_size=2, gpt_j_residual=True)
    assert count_parameters(config, 50257)["total"] == 20_554_567_680


def test_other_parts(make_config) -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 32, "max_position_embeddings": 32}
    assert count_parameters(make_config(**shape, pos_emb="learned"), 61)["positional"] == 32 * 64
    assert count_parameters(make_config(**shape, pos_emb="kerple"), 61)["positional"] == 2 * 2 * 8
    assert count_parameters(make_config(**shape, pos_emb="kerple", kerple_shared=True), 61)["positional"] == 2 * 8
    mapped = count_parameters(make_config(**shape, pos_emb="dape_kerple", dape_hidden_size=6, dape_kernel_size=3), 61)
    assert mapped["positional"] == 2 * 2 * 8 and mapped["dape"] == 2 * (16 * 6 * 3 + 6 + 6 * 8 * 3 + 8)
    grouped = count_parameters(make_config(**shape, pos_emb="none", num_kv_heads=2, use_bias_in_attn_linear=False), 61)
    assert grouped["attention"] == 2 * (64 * 64 * 2 + 2 * 64 * 16)
    gated = count_parameters(make_config(**shape, pos_emb="none", activation="swiglu", use_bias_in_mlp=False, mlp_multiple_of=16), 61)
    assert gated["mlp"] == 2 * 3 * 64 * 176  # 8/3 x 64 = 170.7, rounded up to a multiple of 16
    tied = count_parameters(make_config(**shape, pos_emb="none", gpt_j_residual=True, gpt_j_tied=True, norm="rmsnorm"), 61)
    assert tied["norms"] == 2 * 64 + 64
