"""Half precision: what an encoding computes itself is float32, distances included; only vectors in and out of it are rounded."""

import copy

import pytest
import torch
from toy_attention import HEAD_DIM, encoding_of
from variants import VARIANTS

from megatron.attention.eager import masked_scores
from megatron.attention.mask import AttentionMask
from megatron.config.methods import METHODS

FAR = torch.tensor([*range(2047, 4101), 100_000])  # distances; whole numbers above 2048 (256 in bf16) are no half-precision numbers
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
FLOAT32_ROUNDINGS = 64  # scores after a float32 computation: within so many units of float32's epsilon times the largest score
HALF_ROUNDINGS = 8  # where queries and keys were rotated, and so rounded: the same in units of the half type's epsilon


def methods_with(hook: str) -> list[str]:
    """The base methods that act there."""
    return [name for name, method in METHODS.items() if hook in method.load().acts_on]


@HALVES
@pytest.mark.parametrize(("pos_emb", "kernel", "form"), VARIANTS)
@torch.no_grad()
def test_scores_are_near_float32(pos_emb, kernel, form, dtype):
    """On the same rounded parameters, queries and keys, at distances near and far."""
    half = encoding_of(pos_emb, kernel, form).to(dtype)
    full = copy.deepcopy(half).float()
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([0, 1, 2, 300, 301, 2500, 2501, 2502, 4100])
    places = torch.arange(len(positions))
    q, k = torch.randn(2, 2, half.heads, len(places), HEAD_DIM, generator=generator).to(dtype)  # [b, h, n, d] each
    results = []
    for encoding, type_ in ((half, dtype), (full, torch.float32)):
        rotated = encoding.rotate(q.to(type_), k.to(type_), positions, positions)
        results.append(masked_scores(*rotated, encoding, positions, positions, AttentionMask(places, places)))
    scores, exact = (each.masked_fill(each.isinf(), 0.0) for each in results)
    assert scores.dtype == torch.float32
    rounded = "rotate" in half.acts_on
    bound = HALF_ROUNDINGS * torch.finfo(dtype).eps if rounded else FLOAT32_ROUNDINGS * torch.finfo(torch.float32).eps
    assert (scores - exact).abs().max() < bound * exact.abs().max()


@HALVES
@pytest.mark.parametrize(("hook", "pos_emb"), [(hook, name) for hook in ("bias", "weight") for name in methods_with(hook)])
@pytest.mark.parametrize("mapped", [False, True])
@torch.no_grad()
def test_far_distances_are_exact(hook, pos_emb, mapped, dtype):
    """Bias and weight are those of a float32 encoding with the rounded parameters, bit for bit, and near those of a float64 one."""
    half = encoding_of(f"dape_{pos_emb}" if mapped else pos_emb).to(dtype)
    query, keys = torch.tensor([100_000]), 100_000 - FAR
    found, single, double = (encoding(hook, query, keys) for encoding in (half, copy.deepcopy(half).float(), copy.deepcopy(half).double()))
    assert found.dtype == torch.float32 and double.dtype == torch.float64
    assert torch.equal(found, single)
    smallest = 2e-7 if hook == "bias" else 1e-30  # FIRE's bias crosses zero; far weights are small
    torch.testing.assert_close(found.double(), double, atol=smallest, rtol=2e-5)  # a distance taken for its neighbour is further off
    assert found[..., -1].ne(0).any()
    if hook == "bias" and pos_emb != "t5":  # T5 does not tell distances above rpe_max_distance apart
        assert (found[:, 0].diff() != 0).any(dim=0).all()  # neighbours differ in some head


@HALVES
@pytest.mark.parametrize("pos_emb", [name for name in methods_with("embed") if not list(encoding_of(name).parameters())])
@torch.no_grad()
def test_far_positions_are_embedded_exactly(pos_emb, dtype):
    """Where the vectors are computed; a table is looked up by whole numbers."""
    half = encoding_of(pos_emb).to(dtype)
    exact = copy.deepcopy(half).double()("embed", FAR[:-1])
    torch.testing.assert_close(half("embed", FAR[:-1]).double(), exact, atol=1e-3, rtol=0)  # float32 angles of 4100: 2.5e-4


@HALVES
@pytest.mark.parametrize("pos_emb", methods_with("rotate"))
@torch.no_grad()
def test_far_positions_rotate_exactly(pos_emb, dtype):
    """The result is rounded once, to the type of the queries: half a unit, and float32 angles."""
    half = encoding_of(pos_emb).to(dtype)
    x = torch.randn(1, half.heads, len(FAR) - 1, HEAD_DIM, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = torch.stack(copy.deepcopy(half).double().rotate(x.double(), x.double(), FAR[:-1], FAR[:-1]))
    found = torch.stack(half.rotate(x, x, FAR[:-1], FAR[:-1])).double()
    scale = exact.abs().amax(dim=-1, keepdim=True)
    assert ((found - exact).abs() <= (0.5 * torch.finfo(dtype).eps + 1e-3) * scale).all()
