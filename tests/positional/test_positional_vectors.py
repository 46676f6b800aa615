"""Values and gradients of every golden vector, in float64 to 1e-11, through the eager composition (tests/data/positional/manifest.json)."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch

from megatron.attention.eager import masked_scores
from megatron.attention.mask import AttentionMask
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding
from megatron.positional.build import build_positional
from megatron.positional.t5 import T5

DATA = Path(__file__).parents[1] / "data" / "positional"
MANIFEST = json.loads((DATA / "manifest.json").read_text())["cases"]
TOLERANCE = 1e-11

BASES = {"alibi": "alibi", "kerple": "kerple_log", "nope": "none", "rope": "rotary", "fire": "fire"}
NAMES = {  # case -> pos_emb, where the case is not of DAPE
    "alibi": "alibi",
    "kerple_log": "kerple_log",
    "kerple_log_clamp": "kerple_log",
    "kerple_power_bias": "kerple_power",
    "kerple_power_weight": "kerple_power_weight",
    "kerple_power_bias_weight": "kerple_power_both",
    "kerple_power_clamp": "kerple_power_both",
    "fire": "fire",
    "fire_negative": "fire",
    "t5_rpe": "t5",
    "cope": "cope",
    "cope_clamp": "cope",
    "transformer_xl": "transformer_xl",
    "rotary_full": "rotary",
    "rotary_quarter": "rotary",
    "sinusoidal": "sinusoidal",
}
PARAMETERS = {  # the vectors' name -> ours
    "a": "a",
    "p": "p",
    "bias_a": "bias_kernel.a",
    "bias_p": "bias_kernel.p",
    "weight_a": "weight_kernel.a",
    "weight_p": "weight_kernel.p",
    "c": "c",
    "L_multiplier": "threshold_multiplier",
    "fire_w1": "hidden_weight",
    "fire_b1": "hidden_bias",
    "fire_w2": "output_weight",
    "fire_b2": "output_bias",
    "rpe_table": "table",
    "cope_emb": "embeddings",
    "u": "u",
    "v": "v",
    "w_r": "projection",
    "dape_w1": "score_map.hidden_weight",
    "dape_b1": "score_map.hidden_bias",
    "dape_w2": "score_map.output_weight",
    "dape_b2": "score_map.output_bias",
    "conv1_w": "score_map.hidden_weight",
    "conv1_b": "score_map.hidden_bias",
    "conv2_w": "score_map.output_weight",
    "conv2_b": "score_map.output_bias",
}
INPUTS = ("x", "q", "k")


def load(case: str) -> dict[str, torch.Tensor]:
    with numpy.load(DATA / f"{case}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def build(case: str, arrays: dict[str, torch.Tensor]) -> PositionalEncoding:
    """The encoding of a case, in float64, holding the case's parameters."""
    facts = MANIFEST[case]
    keys = {"dape_hidden_size": 8, "fire_hidden_size": 8, "dape_kernel_size": facts.get("kernel", 1)}
    keys |= {"rotary_pct": float(facts["rotary_pct"])} if "rotary_pct" in facts else {}
    keys |= {"cope_max_position": facts["npos"]} if "npos" in facts else {}
    name = NAMES[case] if case in NAMES else "dape_" + BASES[case.split("_")[1]]
    config = PositionalConfig(pos_emb=name, **keys)
    encoding = build_positional(config, heads=4, head_dim=8, hidden_size=32, seq_length=12, max_position_embeddings=12).double()
    for theirs, ours in PARAMETERS.items():
        if theirs in arrays:
            parameter = encoding.get_parameter(ours)
            parameter.data.copy_(arrays.get(f"{theirs}_raw", arrays[theirs]).reshape(parameter.shape))
    if "L_init" in arrays:
        encoding.length = arrays["L_init"].item()
    return encoding


def output(case: str, encoding: PositionalEncoding, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Scores [b, h, N, N] before masking's -inf, zero above the diagonal."""
    positions = torch.arange(12)
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    if case.startswith("cope"):
        return encoding.adjust(inputs["x"], inputs["q"], allowed).masked_fill(~allowed, 0.0)
    if "x" in inputs:  # given scores: q.k / sqrt(d) with d = N and k the identity
        q, k = inputs["x"] * math.sqrt(12), torch.eye(12, dtype=torch.float64).expand(2, 4, 12, 12)
    else:
        q, k = encoding.rotate(inputs["q"], inputs["k"], positions, positions)
    return masked_scores(q, k, encoding, positions, positions, AttentionMask(positions, positions)).masked_fill(~allowed, 0.0)


@pytest.mark.parametrize("case", [case for case in MANIFEST if not case.startswith(("rotary", "sinusoidal"))])
def test_scores_and_all_gradients(case):
    arrays = load(case)
    encoding = build(case, arrays)
    given = ("q", "k") if case == "dape1_rope" else INPUTS  # there, x is what rotary makes of q and k
    inputs = {name: arrays[name].clone().requires_grad_() for name in given if name in arrays}
    scores = output(case, encoding, inputs)
    (scores * arrays["G"]).sum().backward()

    extended = "_extended" if "grad_x_extended" in arrays else ""
    assert (scores - arrays[f"out{extended}"]).abs().max() < TOLERANCE
    leaves = inputs | {theirs: encoding.get_parameter(ours) for theirs, ours in PARAMETERS.items() if theirs in arrays}
    expected = {name for name in arrays if name.startswith("grad_") and name.endswith(extended)}
    assert expected - {"grad_x"} == {f"grad_{name}{extended}" for name in leaves} - {"grad_x"}
    for name, leaf in leaves.items():
        wanted = arrays[f"grad_{name}{extended}"]
        assert (leaf.grad.reshape(wanted.shape) - wanted).abs().max() < TOLERANCE, name


@pytest.mark.parametrize("case", ["rotary_full", "rotary_quarter"])
def test_rotary(case):
    arrays = load(case)
    encoding = build(case, arrays)
    q, k = (arrays[name].clone().requires_grad_() for name in ("q", "k"))
    rotated = encoding.rotate(q, k, torch.arange(12), torch.arange(12))
    sum((out * arrays[f"G_{name}"]).sum() for name, out in zip("qk", rotated, strict=True)).backward()
    for name, leaf, out in zip("qk", (q, k), rotated, strict=True):
        assert (out - arrays[f"{name}_out"]).abs().max() < TOLERANCE
        assert (leaf.grad - arrays[f"grad_{name}"]).abs().max() < TOLERANCE
    assert (output(case, encoding, {"q": q, "k": k}) - arrays["scores"]).abs().max() < TOLERANCE


def test_sinusoidal():
    arrays = load("sinusoidal")
    encoding = build("sinusoidal", arrays)
    assert (encoding.embed(torch.arange(12)) - arrays["out"][0]).abs().max() < TOLERANCE
    assert (encoding.embed(arrays["position_ids"]) - arrays["out"]).abs().max() < TOLERANCE


def test_contextual_positions_of_cope():
    for case in ("cope", "cope_clamp"):
        arrays = load(case)
        allowed = torch.ones(12, 12, dtype=torch.bool).tril()
        positions = build(case, arrays).positions(arrays["x"], allowed)
        assert (positions.masked_fill(~allowed, 0.0) - arrays["positions"]).abs().max() < TOLERANCE


def test_buckets_of_t5():
    wanted = load("t5_rpe")["bucket_table"]
    encoding: T5 = build("t5_rpe", load("t5_rpe"))
    assert torch.equal(torch.bucketize(torch.arange(len(wanted)), encoding.starts, right=True), wanted)


def test_every_vector_is_tested():
    assert {path.stem for path in DATA.glob("*.npz")} == set(MANIFEST)
    assert all(case in NAMES or case.startswith("dape") for case in MANIFEST)
