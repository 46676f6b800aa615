"""The fused projection and cross-entropy against torch's own, values and gradients."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from megatron.model import loss
from megatron.model.loss import LinearCrossEntropy

N, HIDDEN, ROWS, VOCABULARY = 37, 12, 48, 41


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(ROWS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    return x, weight, torch.randint(0, VOCABULARY, (N,), generator=generator), torch.randn(N, generator=generator).double()


def plain(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(linear(x, weight)[:, :VOCABULARY], labels, reduction="none")


@pytest.mark.parametrize("at_once", [ROWS, 5 * ROWS, 10**6])
def test_values_and_gradients(monkeypatch, at_once: int) -> None:
    """One row at a time, in chunks that do not divide the rows, and all at once; a gradient of its own for each token."""
    monkeypatch.setitem(loss.LOGITS, "cpu", at_once)
    x, weight, labels, upstream = inputs()
    expected = plain(x, weight, labels)
    losses = LinearCrossEntropy.apply(x, weight, labels, VOCABULARY)
    torch.testing.assert_close(losses, expected, atol=1e-13, rtol=0)
    for mine, wanted in zip(
        torch.autograd.grad(losses @ upstream, (x, weight)), torch.autograd.grad(expected @ upstream, (x, weight)), strict=True
    ):
        torch.testing.assert_close(mine, wanted, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Losses are float32, from logits rounded once; gradients within four roundings of the exact ones."""
    x, weight, labels, upstream = inputs(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    losses = LinearCrossEntropy.apply(x, weight, labels, VOCABULARY)
    assert losses.dtype == torch.float32
    wanted = torch.autograd.grad(plain(*exact, labels) @ upstream, exact)
    for mine, each in zip(torch.autograd.grad(losses @ upstream.float(), (x, weight)), wanted, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - each).abs().max() <= 4 * torch.finfo(dtype).eps * (1 + each.abs().max())


def test_large_logits_and_padding() -> None:
    x, weight, labels, _ = inputs()
    weight.data[VOCABULARY:] = 1e3  # would win if padding counted
    losses = LinearCrossEntropy.apply(1e3 * x, weight, labels, VOCABULARY)
    torch.testing.assert_close(losses, plain(1e3 * x, weight, labels), atol=1e-9, rtol=0)
    losses.sum().backward()
    assert torch.isfinite(x.grad).all() and weight.grad[VOCABULARY:].abs().max() == 0 and weight.grad.abs().max() > 0


def test_what_is_not_asked_for_is_not_computed() -> None:
    x, weight, labels, _ = inputs()
    LinearCrossEntropy.apply(x, weight.detach(), labels, VOCABULARY).sum().backward()
    frozen = x.grad.clone()
    x.grad = None
    LinearCrossEntropy.apply(x, weight, labels, VOCABULARY).sum().backward()
    assert torch.equal(x.grad, frozen)


def test_differentiable_once() -> None:
    x, weight, labels, _ = inputs()
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(LinearCrossEntropy.apply(x, weight, labels, VOCABULARY).sum(), x, create_graph=True)
    total = LinearCrossEntropy.apply(x, weight, labels, VOCABULARY).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already"):
        total.backward()
