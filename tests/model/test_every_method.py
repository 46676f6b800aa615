"""Whole models: what holds for every method alone and under a map of every kernel size and form."""

import copy
import io

import pytest
import torch
from torch import Tensor
from variants import FORMS, VARIANTS

from megatron.model.cache import SequenceCache

TRAINED = 8  # tokens
N = 14
EXACT = {"atol": 1e-10, "rtol": 0}
ROUNDINGS = 4  # logits in bf16: within so many units of its epsilon times the largest logit, after two blocks
variants = pytest.mark.parametrize(("pos_emb", "kernel", "form"), VARIANTS)
kernels = pytest.mark.parametrize(("pos_emb", "kernel", "form"), [each for each in VARIANTS if each[2] == FORMS[0]])


@pytest.fixture
def make_variant(make_model):
    """(pos_emb, kernel size, form, further keys) -> a small float64 model whose encoding has no parameters of zero, so that all count."""

    def make(pos_emb: str, kernel: int, form: str, **keys):
        sizes = {"num_layers": 2, "hidden_size": 24, "num_attention_heads": 6, "num_kv_heads": 2, "seq_length": TRAINED}
        maps = {"dape_kernel_size": kernel, "dape_form": form, "dape_hidden_size": 7, "fire_hidden_size": 6}
        model = make_model(pos_emb=pos_emb, **(sizes | maps | keys))
        positional, generator = model.positional_parameter_names(), torch.Generator().manual_seed(3)
        for name, parameter in model.named_parameters():
            if name in positional and not parameter.any():
                parameter.data.normal_(generator=generator)
        return model

    return make


def text(batch: int = 2, length: int = N, seed: int = 5) -> Tensor:
    """Token ids [b, n]."""
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def decoded(model, tokens: Tensor, **ids: Tensor) -> Tensor:
    """Logits [b, n, vocabulary] of one token at a time; `ids` [b, n] are cut to the tokens so far."""
    cache = SequenceCache(len(model.layers))
    rows = [
        model(tokens[:, n : n + 1], cache=cache, **{name: each[:, : n + 1] for name, each in ids.items()}) for n in range(tokens.shape[1])
    ]
    return torch.cat(rows, dim=1)


@variants
@torch.no_grad()
def test_one_token_at_a_time_is_the_full_pass(make_variant, pos_emb, kernel, form) -> None:
    """From the first token to beyond the training length; whole, through a sliding window, and with padding on the left."""
    model, tokens = make_variant(pos_emb, kernel, form), text()
    full = model(tokens)
    torch.testing.assert_close(decoded(model, tokens), full, **EXACT)
    padding, places = torch.tensor([[3], [0]]), torch.arange(N)
    ids = {"position_ids": (places - padding).clamp(min=0), "document_ids": torch.where(places < padding, -1, 0)}
    logits = decoded(model, tokens.where(places >= padding, 0), **ids)
    torch.testing.assert_close(logits[0, 3:], model(tokens[:1, 3:])[0], **EXACT)
    torch.testing.assert_close(logits[1], full[1], **EXACT)
    assert model.window is None
    model.window = 5
    windowed = model(tokens)
    torch.testing.assert_close(decoded(model, tokens), windowed, **EXACT)
    assert (windowed[:, 5:] != full[:, 5:]).any(dim=-1).all()


@variants
@torch.no_grad()
def test_later_tokens_change_no_earlier_logit_by_a_single_bit(make_variant, pos_emb, kernel, form) -> None:
    model, tokens = make_variant(pos_emb, kernel, form), text()
    for model.window, place in ((None, 1), (None, 6), (None, N - 1), (5, 6)):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 61
        before, after = model(tokens), model(changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert (after[:, place] != before[:, place]).any(dim=-1).all()


@variants
@torch.no_grad()
def test_no_member_depends_on_its_batch_and_no_call_on_those_before(make_variant, pos_emb, kernel, form) -> None:
    """Long, short, long on one model: far beyond the training length, below it, far beyond."""
    model, tokens = make_variant(pos_emb, kernel, form), text(batch=3, length=4 * TRAINED)
    long = model(tokens)
    assert long.isfinite().all()
    torch.testing.assert_close(model(tokens[1:2, :3]), long[1:2, :3], **EXACT)
    torch.testing.assert_close(model(tokens[2:]), long[2:], **EXACT)
    assert torch.equal(model(tokens), long)


@variants
def test_a_packed_document_is_the_document_alone(make_variant, pos_emb, kernel, form) -> None:
    """Logits and gradients, wherever it stands in the window, whatever it is packed with, and when decoded."""
    model, documents = make_variant(pos_emb, kernel, form), text().split([5, 7, 2], dim=1)
    alone = [model(document) for document in documents]
    gradients = torch.autograd.grad(sum(logits.square().sum() for logits in alone), list(model.parameters()))
    for order in ((0, 1, 2), (2, 0, 1)):
        packed = torch.cat([documents[each] for each in order], dim=1)
        lengths = [documents[each].shape[1] for each in order]
        ids = {
            "position_ids": torch.cat([torch.arange(length) for length in lengths]).expand_as(packed),
            "document_ids": torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand_as(packed),
        }
        logits = model(packed, **ids)
        torch.testing.assert_close(logits, torch.cat([alone[each] for each in order], dim=1), **EXACT)
    for found, wanted in zip(torch.autograd.grad(logits.square().sum(), list(model.parameters())), gradients, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, packed, **ids), logits, **EXACT)
        model.window = 3
        windowed = torch.cat([model(documents[each]) for each in order], dim=1)
        torch.testing.assert_close(model(packed, **ids), windowed, **EXACT)


@kernels
@pytest.mark.parametrize("heads", [1, 5, 12, 32])  # 6 in all other tests
@torch.no_grad()
def test_any_number_of_heads(make_variant, pos_emb, kernel, form, heads) -> None:
    sizes = {"num_layers": 1, "hidden_size": 4 * heads, "num_attention_heads": heads, "num_kv_heads": None}
    model, tokens = make_variant(pos_emb, kernel, form, **sizes), text(length=6)
    logits = model(tokens)
    assert logits.isfinite().all()
    torch.testing.assert_close(decoded(model, tokens), logits, **EXACT)


@variants
@torch.no_grad()
def test_saved_and_loaded(make_variant, pos_emb, kernel, form) -> None:
    one, file, tokens = make_variant(pos_emb, kernel, form), io.BytesIO(), text()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(one)
    for parameter in other.parameters():
        parameter.data.fill_(0.3)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(tokens), one(tokens))


@kernels
@torch.no_grad()
def test_bf16_is_near_float32(make_variant, pos_emb, kernel, form) -> None:
    """On the same rounded weights, beyond the training length; the loss, a mean over tokens in float32, too."""
    half = make_variant(pos_emb, kernel, form, init_method_std=0.05).bfloat16()
    full, tokens = copy.deepcopy(half).float(), text()
    logits, exact = half(tokens), full(tokens)
    bound = ROUNDINGS * torch.finfo(torch.bfloat16).eps * exact.abs().max()
    assert logits.dtype == torch.bfloat16 and (logits.float() - exact).abs().max() < bound
    labels = tokens.roll(-1, dims=1)
    assert (half(tokens, labels) - full(tokens, labels)).abs().max() < 2 * bound
