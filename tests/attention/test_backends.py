"""The attention backends against each other and against sums written out by hand."""

import math
from dataclasses import replace

import pytest
import torch

from megatron.attention.eager import eager_attention
from megatron.attention.mask import AttentionMask
from megatron.attention.sdpa import sdpa_attention
from megatron.config.methods import METHODS
from megatron.config.positional import PositionalConfig
from megatron.positional.build import build_positional

B, H, D, N = 2, 4, 6, 9
WITHOUT_SDPA = {"weight", "scores", "adjust"}


def encoding(name: str):
    config = PositionalConfig(pos_emb=name, bipe_segment_tokens=[1])
    positional = build_positional(config, heads=H, head_dim=D, hidden_size=H * D, seq_length=N, max_position_embeddings=N).double()
    positional.initialise(torch.Generator().manual_seed(3), 0.02)
    return positional


def inputs(kv_heads: int = H, queries: int = N, keys: int = N):
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, queries, D), (B, kv_heads, keys, D), (B, kv_heads, keys, D))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def masks():
    places = torch.arange(N)
    causal = AttentionMask(places, places)
    documents = torch.tensor([[0] * 4 + [1] * 5, [-1] * 3 + [0] * 6])
    return {
        "causal": causal,
        "window": replace(causal, window=3),
        "documents": replace(causal, query_documents=documents, key_documents=documents),
        "all padding": replace(causal, query_documents=torch.full((B, N), -1), key_documents=torch.full((B, N), -1)),
        "both ways": replace(causal, causal=False),
        "cached": AttentionMask(places[6:], places),
        "one query": AttentionMask(places[8:], places),
    }


def run(attend, positional, mask, tensors):
    """Output and all gradients (of inputs and of the encoding) of a fixed scalar."""
    output = attend(*tensors, positional, mask.query_places, mask.key_places, mask)
    coefficients = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    in_attention = positional.parameters() if "bias" in positional.acts_on and "embed" not in positional.acts_on else ()
    wanted = [*tensors, *(p for p in in_attention if p.numel())]
    return output, torch.autograd.grad((output * coefficients).sum(), wanted)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not WITHOUT_SDPA & method.load().acts_on])
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("kv_heads", [H, 2, 1])
def test_sdpa_is_eager(name: str, mask: str, kv_heads: int) -> None:
    mask = masks()[mask]
    tensors = inputs(kv_heads, len(mask.query_places))
    expected, expected_gradients = run(eager_attention, encoding(name), mask, tensors)
    output, gradients = run(sdpa_attention, encoding(name), mask, tensors)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
    assert torch.isfinite(output).all()
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-10, rtol=1e-10)


def test_sdpa_gives_a_learned_bias_its_gradient() -> None:
    positional = encoding("kerple_log")
    _, gradients = run(sdpa_attention, positional, masks()["causal"], inputs())
    assert len(gradients) == 3 + len(list(positional.parameters())) > 3
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_eager_by_hand() -> None:
    """ALiBi, a window and documents, one (batch, head, query) at a time in plain Python."""
    q, k, v = (tensor.detach() for tensor in inputs())
    documents = masks()["documents"].query_documents
    mask = replace(masks()["documents"], window=4)
    output = eager_attention(q, k, v, encoding("alibi"), mask.query_places, mask.key_places, mask)
    for b in range(B):
        for h in range(H):
            for i in range(N):
                seen = [j for j in range(i + 1) if i - j < 4 and (documents[b, i] == documents[b, j] >= 0 or i == j)]
                scores = [float(q[b, h, i] @ k[b, h, j]) / math.sqrt(D) - 2 ** (-2 * (h + 1)) * (i - j) for j in seen]
                weights = [math.exp(score) for score in scores]
                expected = sum(weight * v[b, h, j] for weight, j in zip(weights, seen, strict=True)) / sum(weights)
                torch.testing.assert_close(output[b, h, i], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("attend", [eager_attention, sdpa_attention])
def test_grouped_heads_are_repeated_heads(attend) -> None:
    q, k, v = (tensor.detach() for tensor in inputs(kv_heads=2))
    mask, positional = masks()["causal"], encoding("kerple_log")
    grouped = attend(q, k, v, positional, mask.query_places, mask.key_places, mask)
    k, v = (torch.stack([heads[:, 0], heads[:, 0], heads[:, 1], heads[:, 1]], dim=1) for heads in (k, v))
    torch.testing.assert_close(grouped, attend(q, k, v, positional, mask.query_places, mask.key_places, mask), atol=1e-13, rtol=0)


@pytest.mark.parametrize("attend", [eager_attention, sdpa_attention])
@pytest.mark.parametrize("name", ["none", "alibi"])
def test_last_rows_alone_are_the_last_rows(attend, name: str) -> None:
    q, k, v = (tensor.detach() for tensor in inputs())
    whole, cached = masks()["causal"], masks()["cached"]
    expected = attend(q, k, v, encoding(name), whole.query_places, whole.key_places, whole)[:, :, 6:]
    output = attend(q[:, :, 6:], k, v, encoding(name), cached.query_places, cached.key_places, cached)
    torch.testing.assert_close(output, expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("attend", [eager_attention, sdpa_attention])
def test_dropout_keeps_the_mean(attend) -> None:
    """Kept probabilities are scaled by 1 / (1 - p): with values of one, each output has mean one over many draws."""
    torch.manual_seed(0)
    q, k, _ = (tensor.detach() for tensor in inputs())
    mask, v = masks()["causal"], torch.ones(B, H, N, D, dtype=torch.float64)
    draws = [attend(q, k, v, encoding("none"), mask.query_places, mask.key_places, mask, 0.25) for _ in range(200)]
    assert torch.stack(draws).std() > 0.1
    assert abs(torch.stack(draws).mean() - 1) < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attend", [eager_attention, sdpa_attention])
@pytest.mark.parametrize("name", ["none", "alibi", "kerple_log"])
def test_half_precision_is_near_float64(attend, dtype: torch.dtype, name: str) -> None:
    """Within four roundings of values of order one."""
    q, k, v = (tensor.detach().to(dtype) for tensor in inputs())
    mask = masks()["causal"]
    exact = eager_attention(q.double(), k.double(), v.double(), encoding(name), mask.query_places, mask.key_places, mask)
    output = attend(q, k, v, encoding(name).to(dtype), mask.query_places, mask.key_places, mask)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), exact, atol=4 * torch.finfo(dtype).eps, rtol=0)
