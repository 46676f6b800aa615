"""Who sees whom: causality, batches, padding, documents, positions."""

import pytest
import torch

from megatron.config.methods import METHODS
from megatron.errors import UserError

BASES = sorted(METHODS)
MAPPED = [{"pos_emb": "dape_kerple"}, {"pos_emb": "dape_kerple", "dape_kernel_size": 3}, {"pos_emb": "dape_learned"}]
ALL = [{"pos_emb": base} for base in BASES] + MAPPED
EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.mark.parametrize("keys", ALL, ids=str)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_later_tokens_change_no_earlier_logit(make_model, tokens, keys, backend) -> None:
    model = make_model(attention_backend=backend, **keys)
    before = model(tokens)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 61
    after = model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(dim=-1).all()


@pytest.mark.parametrize("keys", ALL, ids=str)
def test_a_sequence_does_not_depend_on_its_batch(make_model, tokens, keys) -> None:
    model = make_model(**keys)
    torch.testing.assert_close(model(tokens)[1:], model(tokens[1:]), **EXACT)


@pytest.mark.parametrize("keys", ALL, ids=str)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_left_padding_changes_nothing(make_model, tokens, keys, backend) -> None:
    model = make_model(attention_backend=backend, **keys)
    padding = torch.tensor([[4], [0]])
    places = torch.arange(12)
    padded = torch.where(places < padding, 0, tokens)
    documents = torch.where(places < padding, -1, 0)
    logits = model(padded, position_ids=(places - padding).clamp(min=0), document_ids=documents)
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits[0, 4:], model(tokens[:1, 4:])[0], **EXACT)
    torch.testing.assert_close(logits[1], model(tokens[1:])[0], **EXACT)


@pytest.mark.parametrize("keys", ALL, ids=str)
def test_packed_documents_do_not_see_each_other(make_model, tokens, keys) -> None:
    model = make_model(**keys)
    documents = torch.tensor([[0] * 5 + [1] * 7] * 2)
    positions = torch.cat([torch.arange(5), torch.arange(7)])
    logits = model(tokens, position_ids=positions, document_ids=documents)
    torch.testing.assert_close(logits[:, :5], model(tokens[:, :5]), **EXACT)
    torch.testing.assert_close(logits[:, 5:], model(tokens[:, 5:]), **EXACT)


@pytest.mark.parametrize("base", [base for base in BASES if METHODS[base].sees_positions])
def test_positions_matter(make_model, tokens, base) -> None:
    """Stretched positions change the logits of every method that looks at positions (a check of the checks above)."""
    model = make_model(pos_emb=base)
    if base == "fire":  # starts as a function of relative distance, which an even stretch nearly leaves alone
        positions = torch.arange(12) ** 2 // 8
    else:
        positions = 2 * torch.arange(12)
    assert (model(tokens) - model(tokens, position_ids=positions)).abs().max() > 1e-6


def test_last_is_the_end_of_the_whole(make_model, tokens) -> None:
    model = make_model(pos_emb="alibi")
    labels = tokens.roll(-1, dims=1)
    torch.testing.assert_close(model(tokens, last=5), model(tokens)[:, -5:], **EXACT)
    torch.testing.assert_close(model(tokens, labels[:, -5:], last=5), model(tokens, labels)[:, -5:], **EXACT)
    assert model(tokens, last=100).shape == (2, 12, 61)
    with pytest.raises(ValueError, match="labels"):
        model(tokens, labels, last=5)


def test_losses_are_cross_entropies(make_model, tokens) -> None:
    model = make_model(pos_emb="rotary")
    labels = tokens.roll(-1, dims=1)
    expected = -model(tokens).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(model(tokens, labels), expected, **EXACT)


def test_lengths_that_do_not_fit(make_model, tokens) -> None:
    model = make_model(pos_emb="learned", max_position_embeddings=16)
    with pytest.raises(UserError, match="17.*16"):
        model(tokens.repeat(1, 2)[:, :17])
    with pytest.raises(UserError, match="17 tokens.*16 rows.*learned"):
        model.check_length(17)
    with pytest.raises(ValueError, match="position_ids describes 11"):
        model(tokens, position_ids=torch.arange(11))
