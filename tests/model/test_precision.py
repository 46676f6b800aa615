"""Half precision stays near exact arithmetic on the same (rounded) weights."""

import copy

import pytest
import torch

ROUNDINGS = 4  # logits of order one, three blocks: bound in units of the type's epsilon times the largest logit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pos_emb", ["learned", "rotary", "alibi", "kerple", "dape_kerple"])
def test_logits_and_losses(make_model, tokens, dtype, pos_emb) -> None:
    exact = make_model(pos_emb=pos_emb, init_method_std=0.05).to(dtype).double()  # both start from the rounded weights
    half = copy.deepcopy(exact).to(dtype)
    expected, logits = exact(tokens), half(tokens)
    assert logits.dtype == dtype
    assert (logits.double() - expected).abs().max() < ROUNDINGS * torch.finfo(dtype).eps * expected.abs().max()
    labels = tokens.roll(-1, dims=1)
    losses = half(tokens, labels)
    assert losses.dtype == torch.float32
    assert (losses.double() - exact(tokens, labels)).abs().max() < 2 * ROUNDINGS * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("pos_emb", ["alibi", "kerple"])
def test_far_distances_do_not_collapse(make_model, pos_emb) -> None:
    """Above 2048 (256 in bf16) whole numbers are no longer exact in half precision: biases must differ between neighbours there."""
    encoding = make_model(pos_emb=pos_emb).to(torch.bfloat16).layers[0].attention.positional
    positions = torch.arange(4000)
    bias = encoding("bias", positions[-1:], positions[:3])  # [h, 1, 3]
    assert bias.dtype == torch.float32
    assert (bias[0, 0].diff() > 0).all()
