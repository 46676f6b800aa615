"""Block-wise attention is eager attention: values and all gradients, for every method, map, form and mask."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron.attention.blocks import ROWS
from megatron.attention.blockwise import blockwise_attention
from megatron.attention.eager import eager_attention
from megatron.attention.mask import AttentionMask
from megatron.config.methods import METHODS
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding
from megatron.positional.build import build_positional

H, D = 4, 6
FORMS = ("s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)")
SCORING = [name for name, method in METHODS.items() if method.load().acts_on & {"bias", "weight", "scores", "adjust"}]
BIASED = [name for name in SCORING if "bias" in METHODS[name].load().acts_on]
METHODS_ALONE = [(name, 1, FORMS[0]) for name in (*SCORING, "none")]
MAPS = [(f"dape_{name}", kernel, FORMS[0]) for name in (*SCORING, "none") for kernel in (1, 3)]
MAPS += [(f"dape_{name}", kernel, form) for name in ("kerple_log", "fire", "kerple_power_both") for kernel in (1, 5) for form in FORMS]
MAPS += [("dape_alibi", 7, FORMS[0])]
LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (127, 127), (70, 3), (200, 1)]  # keys, queries


def encoding(name: str, kernel: int = 1, form: str = FORMS[0], heads: int = H, dtype: torch.dtype = torch.float64) -> PositionalEncoding:
    keys = {"dape_kernel_size": kernel, "dape_form": form, "dape_hidden_size": 5, "cope_max_position": 9, "bipe_segment_tokens": [1]}
    sizes = {"heads": heads, "head_dim": D, "hidden_size": heads * D, "seq_length": 50, "max_position_embeddings": 2000}
    positional = build_positional(PositionalConfig(pos_emb=name, **keys), **sizes).double()
    generator = torch.Generator().manual_seed(3)
    positional.initialise(generator, 0.5)
    for parameter in positional.parameters():
        if not parameter.any():
            parameter.data.normal_(generator=generator)
    return positional.to(dtype)


def inputs(keys: int, queries: int, kv_heads: int = 2, batch: int = 2, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(keys)
    shapes = ((batch, H, queries, D), (batch, kv_heads, keys, D), (batch, kv_heads, keys, D))
    return [scale * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def masks(keys: int, queries: int) -> dict[str, AttentionMask]:
    places = torch.arange(keys)
    causal = AttentionMask(places[keys - queries :], places)
    documents = torch.stack([places * 3 // keys, torch.where(places < keys // 3, -1, 0)])  # packed; padded on the left
    packed = replace(causal, query_documents=documents[:, keys - queries :], key_documents=documents)
    windowed = replace(causal, window=9)
    return {
        "causal": causal,
        "window": windowed,
        "documents": packed,
        "window and documents": replace(packed, window=9),
        "both ways": replace(causal, causal=False),
    }


def run(attend, positional: PositionalEncoding, mask: AttentionMask, tensors: list[Tensor], positions: Tensor, dropout: float = 0.0):
    """Output, and the gradients of a fixed scalar by inputs and by all parameters (zero where there is none)."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    output = attend(*tensors, positional, positions[..., -tensors[0].shape[2] :], positions, mask, dropout)
    coefficients = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = [*tensors, *positional.parameters()]
    gradients = torch.autograd.grad((output.double() * coefficients).sum(), wanted, allow_unused=True)
    return output.detach(), [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(wanted, gradients, strict=True)]


def check(positional: PositionalEncoding, mask: AttentionMask, tensors: list[Tensor], positions: Tensor, tolerance: float = 1e-10) -> None:
    expected, expected_gradients = run(eager_attention, positional, mask, tensors, positions)
    output, gradients = run(blockwise_attention, positional, mask, tensors, positions)
    for mine, wanted in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert torch.isfinite(mine).all()
        assert (mine - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())


@pytest.mark.parametrize(("name", "kernel", "form"), METHODS_ALONE + MAPS)
@pytest.mark.parametrize("mask", masks(2, 2))
def test_values_and_gradients(name: str, kernel: int, form: str, mask: str) -> None:
    positional = encoding(name, kernel, form)
    for keys, queries in LENGTHS if mask == "causal" else LENGTHS[4:7:2]:
        check(positional, masks(keys, queries)[mask], inputs(keys, queries), torch.arange(keys))


@pytest.mark.parametrize(("name", "kernel", "form"), METHODS_ALONE + MAPS)
def test_any_positions(name: str, kernel: int, form: str) -> None:
    """Restarted, stretched, and different for each sequence: nothing lies along diagonals."""
    keys = 70
    places = torch.arange(keys)
    each = torch.stack([places % 31, places * 2])
    positional = encoding(name, kernel, form)
    for positions in (each, each[0], places + 40):
        for mask in ("causal", "documents"):
            check(positional, masks(keys, keys)[mask], inputs(keys, keys), positions)


@pytest.mark.parametrize(("name", "kernel"), [("kerple_log", 1), ("dape_kerple_log", 1), ("dape_fire", 3), ("dape_none", 3)])
@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (3, 4)])
def test_a_thousand_tokens(name: str, kernel: int, batch: int, kv_heads: int) -> None:
    check(encoding(name, kernel), masks(1000, 1000)["causal"], inputs(1000, 1000, kv_heads, batch), torch.arange(1000))


@pytest.mark.parametrize(("name", "kernel"), [("alibi", 1), ("dape_kerple_log", 1), ("dape_kerple_log", 3), ("dape_none", 3)])
def test_extreme_scores(name: str, kernel: int) -> None:
    """Scores of 1e4 (whose own rounding is 1e-12) and rows with a single allowed key."""
    positional, places = encoding(name, kernel), torch.arange(70)
    check(positional, masks(70, 70)["causal"], inputs(70, 70, scale=100.0), places, tolerance=1e-8)
    alone = replace(masks(70, 70)["causal"], window=1)
    check(positional, alone, inputs(70, 70, scale=100.0), places, tolerance=1e-8)
    padding = torch.full((2, 70), -1)
    check(positional, replace(alone, window=None, query_documents=padding, key_documents=padding), inputs(70, 70), places)


@pytest.mark.parametrize(("name", "kernel"), [("kerple_power_both", 1), ("dape_kerple_log", 1), ("dape_fire", 3), ("cope", 1)])
def test_dropout_is_the_same_forwards_and_backwards(name: str, kernel: int) -> None:
    """With the values one key each, the output is the dropped probabilities themselves; eager with these is the whole call."""
    keys = 2 * ROWS + 5
    positional, places = encoding(name, kernel), torch.arange(keys)
    mask = masks(keys, keys)["causal"]
    q, k, v = inputs(keys, keys, kv_heads=H)
    identity = torch.eye(keys, dtype=torch.float64).expand(2, H, -1, -1)

    def dropped(attend, values: Tensor, dropout: float):
        torch.manual_seed(11)
        return attend(q, k, values, positional, places, places, mask, dropout)

    probabilities = dropped(eager_attention, identity, 0.0)
    factors = dropped(blockwise_attention, identity, 0.3) / probabilities.clamp(min=1e-300)  # [b, h, q, k]
    seen = torch.ones(keys, keys).tril().bool().expand_as(factors)
    near_zero, near_scaled = (factors.abs() < 1e-9) & seen, ((factors - 1 / 0.7).abs() < 1e-6) & seen
    assert (near_zero | near_scaled)[seen].all()
    assert abs(float(near_zero.sum() / seen.sum()) - 0.3) < 0.02
    assert not torch.equal(near_zero[0], near_zero[1]) and not torch.equal(near_zero[:, 0], near_zero[:, 1])

    def with_factors(q, k, v, positional, query_positions, key_positions, mask, dropout):
        weights = eager_attention(q, k, identity, positional, query_positions, key_positions, mask) * near_scaled / 0.7
        return weights @ v

    torch.manual_seed(11)
    output, gradients = run(blockwise_attention, positional, mask, [q, k, v], places, 0.3)
    expected, expected_gradients = run(with_factors, positional, mask, [q, k, v], places)
    for mine, wanted in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "kernel"), [("alibi", 1), ("kerple_log", 1), ("dape_kerple_log", 1), ("dape_kerple_log", 3), ("dape_fire", 1)]
)
def test_half_precision(name: str, kernel: int, dtype: torch.dtype) -> None:
    """Output and gradients of the inputs within four roundings of the exact ones from the same rounded inputs, for values of order one."""
    keys = 2 * ROWS + 5
    rounded, places = encoding(name, kernel, dtype=dtype), torch.arange(keys)
    tensors = [tensor.to(dtype) for tensor in inputs(keys, keys)]
    exact, exact_gradients = run(
        eager_attention,
        encoding(name, kernel, dtype=dtype).double(),
        masks(keys, keys)["causal"],
        [each.double() for each in tensors],
        places,
    )
    output, gradients = run(blockwise_attention, rounded, masks(keys, keys)["causal"], tensors, places)
    assert output.dtype == dtype and all(gradient.dtype == dtype for gradient in gradients)
    for mine, wanted in zip((output, *gradients[:3]), (exact, *exact_gradients[:3]), strict=True):
        assert (mine.double() - wanted).abs().max() <= 4 * torch.finfo(dtype).eps * (1 + wanted.abs().max())


@pytest.mark.parametrize("reentrant", [True, False])
def test_inside_activation_checkpointing(reentrant: bool) -> None:
    keys = ROWS + 9
    positional, places, mask = encoding("dape_kerple_log", 3), torch.arange(keys), masks(keys, keys)["causal"]

    def checkpointed(*call):
        return checkpoint(blockwise_attention, *call, use_reentrant=reentrant)

    torch.manual_seed(4)
    expected, expected_gradients = run(blockwise_attention, positional, mask, inputs(keys, keys), places, 0.2)
    torch.manual_seed(4)
    output, gradients = run_backward(checkpointed, positional, mask, inputs(keys, keys), places, 0.2)
    for mine, wanted in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert torch.equal(mine, wanted)


def run_backward(attend, positional: PositionalEncoding, mask: AttentionMask, tensors: list[Tensor], positions: Tensor, dropout: float):
    """`run` by `backward()`, which reentrant checkpointing needs."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    output = attend(*tensors, positional, positions[..., -tensors[0].shape[2] :], positions, mask, dropout)
    coefficients = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positional.zero_grad()
    (output * coefficients).sum().backward()
    return output.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in (*tensors, *positional.parameters())]


def test_a_second_derivative_is_refused() -> None:
    positional, places, mask = encoding("dape_kerple_log"), torch.arange(9), masks(9, 9)["causal"]
    q, k, v = (tensor.requires_grad_() for tensor in inputs(9, 9))
    output = blockwise_attention(q, k, v, positional, places, places, mask)
    with pytest.raises(NotImplementedError, match="second derivative.*eager"):
        torch.autograd.grad(output.sum(), q, create_graph=True)


def test_the_output_bias_of_a_map_has_an_exactly_zero_gradient() -> None:
    """It shifts all scores of a row alike; rounding noise there would be blown up to whole steps by Adam."""
    positional = encoding("dape_kerple_log")
    run_backward(blockwise_attention, positional, masks(40, 40)["causal"], inputs(40, 40), torch.arange(40), 0.0)
    gradient = positional.score_map.output_bias.grad
    assert gradient is not None and not gradient.any()


def test_parameters_are_never_written_to() -> None:
    positional = encoding("dape_fire", 3)
    before = {name: (parameter._version, parameter.clone()) for name, parameter in positional.named_parameters()}
    run(blockwise_attention, positional, masks(70, 70)["causal"], inputs(70, 70), torch.arange(70))
    for name, parameter in positional.named_parameters():
        assert parameter._version == before[name][0] and torch.equal(parameter, before[name][1])
