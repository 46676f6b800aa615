"""Every combination of the configuration's choices builds, learns, and survives being saved."""

import io
import itertools

import pytest
import torch

from megatron.config import ConfigError
from megatron.model.gpt import GPT
from megatron.model.init import initialise

ACTIVATIONS = ["gelu", "relu", "silu", "swiglu", "geglu", "reglu"]
RESIDUALS = [{}, {"gpt_j_residual": True}, {"gpt_j_residual": True, "gpt_j_tied": True}]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("residual", RESIDUALS, ids=str)
def test_every_combination_trains_a_step(make_config, tokens, activation, norm, residual) -> None:
    for biases, untied in itertools.product([True, False], repeat=2):
        config = make_config(
            pos_emb="kerple", num_layers=2, hidden_size=32, num_kv_heads=2 if untied else 4, activation=activation, norm=norm,
            no_weight_tying=untied, use_bias_in_norms=biases, use_bias_in_attn_linear=biases, use_bias_in_mlp=biases,
            embedding_layernorm=biases, **residual,
        )  # fmt: skip
        model = GPT(config, 61)
        initialise(model, config.model, 1)
        assert any(name.endswith("bias") for name, _ in model.named_parameters()) == biases
        assert ("head.weight" in dict(model.named_parameters())) == untied
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(2):
            loss = model(tokens[:, :-1], tokens[:, 1:]).mean()
            optimizer.zero_grad()
            loss.backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] < losses[0]

        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = GPT(config, 61)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.eval()(tokens), model.eval()(tokens))


def test_parameter_names(make_config) -> None:
    """Checkpoints live by these names."""
    config = make_config(pos_emb="kerple", num_layers=1, no_weight_tying=True, activation="swiglu", embedding_layernorm=True)
    linears = ["attention.query_key_value", "attention.output", "mlp.gate", "mlp.up", "mlp.down"]
    block = [f"layers.0.{part}.{kind}" for part in [*linears, "attention_norm", "mlp_norm"] for kind in ("weight", "bias")]
    positional = ["layers.0.attention.positional.a", "layers.0.attention.positional.p"]
    ends = ["embedding.word_embeddings.weight", "head.weight"]
    ends += [f"{layer}.norm.{kind}" for layer in ("embedding", "head") for kind in ("weight", "bias")]
    model = GPT(config, 61)
    assert sorted(dict(model.named_parameters())) == sorted(block + positional + ends) == sorted(model.state_dict())
    assert model.positional_parameter_names() == set(positional)


def test_a_shared_encoding_is_registered_once(make_config) -> None:
    shared = GPT(make_config(pos_emb="kerple", kerple_shared=True), 61)
    assert shared.positional_parameter_names() == {"positional.a", "positional.p"}
    assert all(block.attention.positional is shared.positional for block in shared.layers)
    assert [name for name in shared.state_dict() if "positional" in name] == ["positional.a", "positional.p"]
    learned = GPT(make_config(pos_emb="learned"), 61)
    assert learned.positional_parameter_names() == {"embedding.positional.table"}
    separate = GPT(make_config(pos_emb="kerple"), 61)
    assert len({block.attention.positional for block in separate.layers}) == 3


def test_tied_weights_are_one_parameter(make_config, tokens) -> None:
    model = GPT(make_config(pos_emb="none"), 61)
    assert model.head.weight is model.embedding.word_embeddings.weight
    model.double()
    assert model.head.weight is model.embedding.word_embeddings.weight


def test_a_backend_that_cannot_is_refused_when_the_model_is_built(make_config) -> None:
    with pytest.raises(ConfigError, match="sdpa.*'dape_kerple'"):
        GPT(make_config(pos_emb="dape_kerple", attention_backend="sdpa"), 61)
    assert "sdpa" in GPT(make_config(pos_emb="alibi", attention_backend="sdpa"), 61).attention_reason
    assert "blockwise" in GPT(make_config(pos_emb="dape_kerple"), 61).attention_reason


def test_padding_the_vocabulary_changes_no_loss(make_model, tokens) -> None:
    labels = tokens.roll(-1, dims=1)
    plain, padded = (make_model(pos_emb="rotary", make_vocab_size_divisible_by=multiple) for multiple in (1, 64))
    assert padded.head.weight.shape[0] == 64 and plain.head.weight.shape[0] == 61
    state = plain.state_dict()
    for name in ("embedding.word_embeddings.weight", "head.weight"):
        state[name] = torch.cat([state[name], torch.full((3, 48), 9.0, dtype=torch.float64)])  # large: they would win if they counted
    padded.load_state_dict(state)
    assert padded(tokens).shape == (2, 12, 61)
    losses = [model(tokens, labels) for model in (plain, padded)]
    torch.testing.assert_close(*losses, atol=1e-12, rtol=0)
    losses[1].sum().backward()
    assert padded.head.weight.grad[61:].abs().max() == 0


def test_dropout_acts_in_training_only(make_model, tokens) -> None:
    for keys in ({"hidden_dropout": 0.2}, {"attention_dropout": 0.2}):
        model = make_model(pos_emb="alibi", **keys)
        assert torch.equal(model(tokens), model(tokens))
        model.train()
        assert not torch.equal(model(tokens), model(tokens))
