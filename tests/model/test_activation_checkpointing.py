"""Recomputed activations give the loss and the gradients of kept ones, dropout included."""

import pytest
import torch


def loss_and_gradients(model, tokens):
    torch.manual_seed(11)
    loss = model.train()(tokens[:, :-1], tokens[:, 1:]).mean()
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("pos_emb", ["learned", "rotary", "kerple", "dape_kerple"])
@pytest.mark.parametrize("segment", [1, 2, 5])
def test_recomputing_changes_nothing(make_model, tokens, pos_emb: str, segment: int) -> None:
    keys = {"pos_emb": pos_emb, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    plain = loss_and_gradients(make_model(**keys), tokens)
    recomputed = loss_and_gradients(make_model(**keys, checkpoint_activations=True, checkpoint_num_layers=segment), tokens)
    assert torch.equal(plain[0], recomputed[0])
    for name, gradient in plain[1].items():
        torch.testing.assert_close(recomputed[1][name], gradient, atol=1e-13, rtol=0)


@pytest.mark.parametrize(("segment", "expected"), [(1, 6), (2, 6), (5, 6)])
def test_blocks_run_twice_in_training_only(make_model, tokens, segment: int, expected: int) -> None:
    model = make_model(pos_emb="alibi", checkpoint_activations=True, checkpoint_num_layers=segment)
    calls = []
    for block in model.layers:
        block.register_forward_pre_hook(lambda *_: calls.append(1))
    model(tokens)
    assert len(calls) == 3
    calls.clear()
    model.train()(tokens).sum().backward()
    assert len(calls) == expected
