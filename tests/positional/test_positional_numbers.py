"""Formulas against plain loops at other sizes, half precision, initial values, and the figures that are reported."""

import math

import pytest
import torch
from toy_attention import FORMS, encoding_of

from megatron.config.methods import METHODS
from megatron.config.positional import PositionalConfig
from megatron.positional.alibi import slopes
from megatron.positional.build import build_positional
from megatron.positional.dape import DapeMap
from megatron.positional.t5 import bucket_starts


def leaky(x: float) -> float:
    return x if x > 0 else 0.01 * x


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_the_map_is_its_formula(kernel, form):
    """Against loops over every index, with an arbitrary mask and a bias per batch member."""
    b, h, n, width, reach = 2, 3, 6, 4, kernel // 2
    generator = torch.Generator().manual_seed(kernel)
    score_map = DapeMap(h, reads_bias=True, hidden=width, kernel_size=kernel, form=form).double()
    score_map.initialise(generator)
    scores, bias = torch.randn(2, b, h, n, n, generator=generator, dtype=torch.float64)
    allowed = torch.rand(b, 1, n, n, generator=generator) < 0.7

    inputs = torch.cat([scores, bias] if form != "s+b+f(b)" else [bias], dim=1) * allowed
    w1, b1, w2, b2 = (each.tolist() for each in score_map.parameters())
    wanted = scores.clone() if form == "s+f(s,b)" else scores + bias
    for batch in range(b):
        for i in range(n):
            hidden = {}
            for column in range(n + reach):
                near = [(u, column + u - reach) for u in range(kernel) if 0 <= column + u - reach < n]
                hidden[column] = [
                    leaky(b1[e] + sum(w1[e][c][u] * inputs[batch, c, i, j].item() for u, j in near for c in range(inputs.shape[1])))
                    for e in range(width)
                ]
            for head in range(h):
                for j in range(n):
                    near = [(u, hidden[j + u - reach]) for u in range(kernel) if j + u - reach >= 0]
                    wanted[batch, head, i, j] += b2[head] + sum(w2[head][e][u] * column[e] for u, column in near for e in range(width))
    assert (score_map("refine", scores, bias, allowed) - wanted).abs().max() < 1e-12


def test_a_bias_without_batch_serves_all_members():
    score_map = DapeMap(3, reads_bias=True, hidden=4, kernel_size=3).double()
    score_map.initialise(torch.Generator().manual_seed(0))
    scores, bias, allowed = torch.randn(2, 3, 5, 5).double(), torch.randn(3, 5, 5).double(), torch.ones(5, 5).tril().bool()
    assert torch.equal(score_map("refine", scores, bias, allowed), score_map("refine", scores, bias.expand(2, -1, -1, -1), allowed))


def test_slopes_of_alibi():
    assert slopes(8).tolist() == [2.0**-u for u in range(1, 9)]
    assert slopes(1).tolist() == [2.0**-8]
    wanted = [2.0**-u for u in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    assert torch.allclose(slopes(12, torch.float64), torch.tensor(wanted, dtype=torch.float64), rtol=1e-15)
    wanted = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    assert slopes(6, torch.float64).tolist() == wanted


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 256), (8, 20), (5, 9), (64, 1000), (2, 5)])
def test_buckets_of_t5_at_other_sizes(buckets, furthest):
    starts, exact = bucket_starts(buckets, furthest), buckets // 2
    assert len(starts) == buckets - 1
    found = torch.bucketize(torch.arange(2 * furthest), torch.tensor(starts), right=True).tolist()
    for distance, bucket in enumerate(found):
        wanted = distance if distance < exact else exact + math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact)
        if abs(wanted - round(wanted)) > 1e-9:  # where a logarithm's rounding cannot decide
            wanted = math.floor(wanted)
        assert bucket == min(buckets - 1, round(wanted))


def test_the_three_parameter_kernel_of_kerple():
    encoding = encoding_of("kerple_log3", heads=3)
    encoding.a.data, encoding.p.data, encoding.r.data = torch.tensor([[0.5, 0.001, 2], [1, 2, -1], [1, 0.5, 3]]).double()
    a, p, r = [0.5, 0.01, 2.0], [1.0, 2.0, 0.01], [1.0, 0.5, 2.0]
    bias = encoding.distance_bias(torch.arange(50))
    for head in range(3):
        for t in range(50):
            assert abs(bias[head, t].item() + p[head] * math.log(1 + a[head] * t ** r[head])) < 1e-6
    bias.sum().backward()
    assert (encoding.a.grad != 0).all() and (encoding.p.grad != 0).all() and (encoding.r.grad != 0).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pos_emb", [name for name in METHODS])
def test_half_precision_keeps_distances_exact(pos_emb, kind):
    """Half-precision weights are read as they are; all the rest is float32, so a distance of 4097 is not 4096."""
    half, single = encoding_of(pos_emb).to(kind), encoding_of(pos_emb).to(kind).float()
    queries, keys = torch.tensor([4097, 4100]), torch.arange(4101)
    for hook in half.acts_on & {"bias", "weight"}:
        value = getattr(half, hook)(queries, keys)
        assert value.dtype == torch.float32
        assert torch.equal(value, getattr(single, hook)(queries, keys))
        if pos_emb not in ("t5", "kerple_power_weight", "kerple_power_both"):  # buckets and vanished weights repeat
            assert (value[:, 0, 0] != value[:, 0, 1]).any()
    if "rotate" in half.acts_on:
        q, k = torch.randn(2, 1, 5, 2, 4)
        exact = half.rotate(q.to(kind).double(), k.to(kind).double(), queries, queries)
        for ours, wanted in zip(half.rotate(q.to(kind), k.to(kind), queries, queries), exact, strict=True):
            assert ours.dtype == kind and (ours.double() - wanted).abs().max() < (0.02 if kind == torch.bfloat16 else 0.003)
    if pos_emb == "sinusoidal":
        assert (half.embed(queries).double() - encoding_of(pos_emb).embed(queries)).abs().max() < 1e-3
    if "scores" in half.acts_on:
        q, k = torch.randn(1, 5, 2, 4), torch.randn(1, 5, 4101, 4)
        wanted = single.double().scores(q.double(), k.double(), queries, keys)
        assert (half.scores(q, k, queries, keys) - wanted).abs().max() < 1e-3


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_half_precision_map_computes_in_float32(kernel):
    encoding = encoding_of("dape_kerple", kernel).to(torch.bfloat16)
    scores, allowed = torch.randn(2, 5, 7, 7), torch.ones(7, 7).tril().bool()
    bias = encoding.bias(torch.arange(7), torch.arange(7))
    half = encoding.score_map("refine", scores, bias, allowed)
    assert half.dtype == torch.float32
    exact = encoding.score_map.double()("refine", scores.double(), bias.double(), allowed)
    assert (half - exact).abs().max() < 1e-5


def test_float64_is_kept():
    for name in METHODS:
        encoding = encoding_of(name)
        for hook in encoding.acts_on & {"bias", "weight"}:
            assert getattr(encoding, hook)(torch.arange(3), torch.arange(3)).dtype == torch.float64


def drawn(pos_emb: str, heads: int = 400, **keys):
    config = PositionalConfig(pos_emb=pos_emb, bipe_segment_tokens=[1], **keys)
    encoding = build_positional(config, heads=heads, head_dim=2, hidden_size=2 * heads, seq_length=64, max_position_embeddings=64)
    encoding.initialise(torch.Generator().manual_seed(1), 0.3)
    return encoding


def is_uniform(values: torch.Tensor, low: float, high: float) -> bool:
    margin = (high - low) / 10
    reaches_both_ends = low <= values.min() < low + margin and high - margin < values.max() <= high
    return reaches_both_ends and abs(values.mean() - (low + high) / 2) < margin


def test_initial_values():
    kerple = drawn("kerple")
    assert is_uniform(kerple.a, 0, 1) and is_uniform(kerple.p, 0, 2)
    both = drawn("kerple_power_both")
    assert all(is_uniform(kernel.a, 0, 1) and is_uniform(kernel.p, 0, 2) for kernel in (both.bias_kernel, both.weight_kernel))
    assert torch.equal(drawn("kerple_log3").r, torch.ones(400))
    fire = drawn("fire")
    assert fire.c.tolist() == [pytest.approx(0.1)] and fire.threshold_multiplier.tolist() == [1.0] and fire.length == 32
    assert is_uniform(fire.hidden_weight, -1, 1) and is_uniform(fire.output_weight, -(32**-0.5), 32**-0.5)
    assert drawn("fire", fire_threshold=7).length == 7
    assert not drawn("cope").embeddings.any()
    assert drawn("t5").table.std().item() == pytest.approx(math.sqrt(2 / 432), rel=0.05)
    assert drawn("learned").table.std().item() == pytest.approx(0.3, rel=0.05)
    xl = drawn("transformer_xl", heads=40)
    assert xl.u.std().item() == pytest.approx(0.02, rel=0.3) and is_uniform(xl.projection, -(80**-0.5), 80**-0.5)


@pytest.mark.parametrize(("pos_emb", "kernel", "channels"), [("dape_kerple", 1, 80), ("dape_kerple", 3, 80), ("dape_rope", 5, 40)])
def test_initial_values_of_the_map(pos_emb, kernel, channels):
    score_map = drawn(pos_emb, heads=40, dape_kernel_size=kernel, dape_hidden_size=50).score_map
    assert score_map.hidden_weight.shape == (50, channels, kernel) and score_map.output_weight.shape == (40, 50, kernel)
    for weight, bias in ((score_map.hidden_weight, score_map.hidden_bias), (score_map.output_weight, score_map.output_bias)):
        bound = (weight.shape[1] * kernel) ** -0.5
        assert is_uniform(weight, -bound, bound) and is_uniform(bias, -bound, bound)


def test_initial_values_are_the_generators():
    one, same, other = drawn("dape_fire", heads=4), drawn("dape_fire", heads=4), drawn("dape_fire", heads=4)
    other.initialise(torch.Generator().manual_seed(2), 0.3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.score_map.hidden_weight, other.score_map.hidden_weight)


def test_figures():
    kerple = drawn("kerple", heads=2)
    kerple.a.data, kerple.p.data = torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.001])
    figures = kerple.statistics()
    assert figures["a_min"] == 0.5 and figures["a_max"] == 1.0 and figures["a_mean"] == 0.75
    assert figures["effective_length_head0"] == 13  # ln(1 + t / 2) > 2 from t = 2 (e^2 - 1) = 12.8 on
    assert figures["effective_length_head1"] == 32768  # never
    alibi = drawn("alibi", heads=8).statistics()
    assert alibi["effective_length_head0"] == 5 and alibi["effective_length_head7"] == 513  # 2 / slope, then strictly below
    fire = drawn("fire", heads=2)
    fire.threshold_multiplier.data.fill_(-0.5)
    figures = fire.statistics()
    assert figures["threshold"] == 16 and figures["c"] == pytest.approx(0.1) and "effective_length_head1" in figures
    score_map = drawn("dape_none", heads=2)
    score_map.score_map.output_weight.data.fill_(2.0)
    assert score_map.statistics()["dape_output_weight_norm"] == pytest.approx(16.0)  # sqrt(2 * 32 * 4)
    for name in METHODS:
        assert all(isinstance(value, float) and math.isfinite(value) for value in drawn(f"dape_{name}", heads=2).statistics().values())
