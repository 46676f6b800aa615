"""What holds for every method alone and under a map of every kernel size and form."""

import pytest
import torch
from toy_attention import encoding_of, hidden_states, scores_of
from variants import FORMS, VARIANTS

from megatron.config.methods import METHODS

TOKENS = 11
variants = pytest.mark.parametrize(("pos_emb", "kernel", "form"), VARIANTS)


def close(a, b, tolerance=1e-11):
    """Equal where both are finite, and -inf at the same places."""
    assert a.shape == b.shape
    assert torch.equal(a.isinf(), b.isinf())
    assert (a - b).masked_fill(a.isinf(), 0.0).abs().max() < tolerance


@variants
def test_a_decoded_row_is_the_row_of_the_full_computation(pos_emb, kernel, form):
    encoding, x, positions = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), torch.arange(TOKENS)
    full = scores_of(encoding, x, positions)
    for row in range(TOKENS):
        close(scores_of(encoding, x[:, : row + 1], positions[: row + 1], slice(row, None)), full[:, :, row : row + 1, : row + 1])
    close(scores_of(encoding, x, positions, slice(4, 9)), full[:, :, 4:9])  # several rows against all keys


@variants
def test_no_row_depends_on_later_tokens_by_a_single_bit(pos_emb, kernel, form):
    encoding, x, positions = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), torch.arange(TOKENS)
    full = scores_of(encoding, x, positions)
    for changed in (1, 6, TOKENS - 1):
        other = x.clone()
        other[:, changed:] = 3 * hidden_states(5, TOKENS, seed=1)[:, changed:]
        scores = scores_of(encoding, other, positions)
        assert torch.equal(scores[:, :, :changed], full[:, :, :changed])
        assert not torch.equal(scores[:, :, changed:], full[:, :, changed:])


@variants
def test_left_padding_changes_nothing(pos_emb, kernel, form):
    encoding, x, positions = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), torch.arange(TOKENS)
    full = scores_of(encoding, x, positions)
    for pads in (1, 4):
        padded = torch.cat([hidden_states(5, pads, seed=2), x], dim=1)
        documents = torch.cat([torch.full((pads,), -1), torch.zeros(TOKENS)]).long().expand(2, -1)
        for first in (torch.arange(-pads, 0), torch.zeros(pads).long()):  # whatever positions the padding has
            scores = scores_of(encoding, padded, torch.cat([first, positions]).expand(2, -1), documents=documents)
            close(scores[:, :, pads:, pads:], full)
            assert (scores[:, :, pads:, :pads] == -torch.inf).all()


@variants
def test_batch_members_are_independent(pos_emb, kernel, form):
    encoding, x = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS, batch=3)
    positions = torch.stack([torch.arange(TOKENS), torch.arange(TOKENS) + 5, torch.arange(TOKENS) % 4])  # each its own
    together = scores_of(encoding, x, positions)
    for member in range(3):
        close(scores_of(encoding, x[member : member + 1], positions[member]), together[member : member + 1])


@variants
def test_other_documents_and_what_the_window_hides_do_not_count(pos_emb, kernel, form):
    encoding, x, positions = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), torch.arange(TOKENS)
    other = x.clone()
    other[:, :4] = hidden_states(5, 4, seed=3)
    documents = torch.tensor([0] * 4 + [1] * 7).expand(2, -1)
    for first, mask in ((4, {"documents": documents}), (6, {"window": 3})):
        scores, wanted = (scores_of(encoding, each, positions, **mask)[:, :, first:] for each in (other, x))
        assert torch.equal(scores, wanted)


@variants
@pytest.mark.parametrize("mask", [{}, {"window": 3}, {"causal": False}], ids=str)
def test_a_packed_document_has_the_scores_of_the_document_alone(pos_emb, kernel, form, mask):
    """In front of another one, between two and behind one; positions begin anew in each."""
    encoding, x, lengths = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), [4, 5, 2]
    positions = torch.cat([torch.arange(length) for length in lengths])
    documents = torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    packed = scores_of(encoding, x, positions, documents=documents, **mask)
    for first, last in ((0, 4), (4, 9), (9, 11)):
        close(packed[:, :, first:last, first:last], scores_of(encoding, x[:, first:last], torch.arange(last - first), **mask))
        assert (packed[:, :, first:last, :first] == -torch.inf).all() and (packed[:, :, first:last, last:] == -torch.inf).all()


@variants
def test_without_causality_all_pairs_count(pos_emb, kernel, form):
    encoding, x, positions = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS), torch.arange(TOKENS)
    scores = scores_of(encoding, x, positions, causal=False)
    assert scores.isfinite().all()
    if encoding.score_map is None and not encoding.acts_on & {"adjust"}:
        close(scores.tril(), scores_of(encoding, x, positions).masked_fill(~torch.ones(TOKENS, TOKENS).tril().bool(), 0.0))


@pytest.mark.parametrize("heads", [1, 5, 6, 12, 32])
@pytest.mark.parametrize(("pos_emb", "kernel", "form"), [each for each in VARIANTS if each[2] == FORMS[0]])
def test_any_number_of_heads(pos_emb, kernel, form, heads):
    encoding, x, positions = encoding_of(pos_emb, kernel, form, heads), hidden_states(heads, 6), torch.arange(6)
    full = scores_of(encoding, x, positions)
    assert full.shape == (2, heads, 6, 6)
    close(scores_of(encoding, x, positions, slice(5, None)), full[:, :, 5:])


@pytest.mark.parametrize("pos_emb", [name for name in METHODS if name != "fire" and "embed" not in METHODS[name].load().acts_on])
def test_only_differences_of_positions_count(pos_emb):
    encoding, x, positions = encoding_of(pos_emb), hidden_states(5, TOKENS), torch.arange(TOKENS)
    close(scores_of(encoding, x, positions + 150), scores_of(encoding, x, positions))


@variants
def test_forward_never_writes_to_parameters(pos_emb, kernel, form):
    encoding, x = encoding_of(pos_emb, kernel, form), hidden_states(5, TOKENS).requires_grad_()
    for parameter in encoding.parameters():
        parameter.data.mul_(-1.0)  # out of every bound
    before = {name: (tensor.clone(), tensor.data_ptr(), tensor._version) for name, tensor in encoding.state_dict(keep_vars=True).items()}
    scores_of(encoding, x, torch.arange(TOKENS)).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), 0.0).sum().backward()
    for name, tensor in encoding.state_dict(keep_vars=True).items():
        value, pointer, version = before[name]
        assert torch.equal(tensor, value) and tensor.data_ptr() == pointer and tensor._version == version
        assert tensor.grad is not None, name


@variants
def test_saved_and_loaded(pos_emb, kernel, form):
    one, other = encoding_of(pos_emb, kernel, form), encoding_of(pos_emb, kernel, form)
    for parameter in other.parameters():
        parameter.data.fill_(0.3)
    other.load_state_dict(one.state_dict())
    x, positions = hidden_states(5, TOKENS), torch.arange(TOKENS)
    assert torch.equal(scores_of(other, x, positions), scores_of(one, x, positions))


GRADCHECK = [each for each in VARIANTS if each[1] != 5 and (each[2] == FORMS[0] or each[0] == "dape_kerple_log")]


@pytest.mark.parametrize(("pos_emb", "kernel", "form"), GRADCHECK)
def test_gradients(pos_emb, kernel, form):
    encoding = encoding_of(pos_emb, kernel, form, heads=2, cope_max_position=5)
    x, positions = hidden_states(2, 4, batch=1), torch.arange(4)
    if "kerple" in pos_emb:  # inside the bounds, where the gradient is the derivative
        for name, parameter in encoding.named_parameters():
            if not name.startswith("score_map"):
                parameter.data.clamp_(0.2, 1.8)
    if "fire" in pos_emb:
        encoding.length = 2.5  # no query stands on the threshold's kink
    if any(name in pos_emb for name in ("t5", "learned", "bipe")):  # large tables: the rows in use
        encoding.table = torch.nn.Parameter(encoding.table[:4].detach())
    future = torch.ones(4, 4).triu(1).bool()
    inputs = (x.requires_grad_(), *encoding.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: scores_of(encoding, x, positions).masked_fill(future, 0.0), inputs)
