"""A DAPE map that starts as the identity on a model trained without one; what is trained; what is refused."""

from pathlib import Path

import pytest
import torch

from megatron.config import ConfigError
from megatron.config.derive import complete
from megatron.generation.run import sample_from_checkpoint
from megatron.model.gpt import GPT
from megatron.tokenizer import build_tokenizer
from megatron.training.adapt import check_adapts
from megatron.training.checkpoint import CheckpointError, Layout, file_record, publish, temporary_folder
from megatron.training.pretrain import Start, find_start
from megatron.training.trainable import count_parameters, freeze
from megatron.training.weights import fill, fitting_weights, read_configuration

METHODS = [
    ("none", {}),
    ("kerple_log", {}),
    ("kerple_log", {"kerple_shared": True}),
    ("kerple_power_weight", {}),
    ("alibi", {}),
    ("t5", {}),
    ("rotary", {}),
    ("learned", {}),
    ("fire", {"fire_activation": "relu"}),
    ("transformer_xl", {}),
    ("cope", {}),
]


def move_from_start(model: GPT) -> None:
    """Parameters that start at zero, as CoPE's, must not hide that they were lost."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.05)


@pytest.fixture
def save(tmp_path):
    """A function that writes a model as the checkpoint of step 7 of a run without ZeRO, and returns its folder."""

    def write(model: GPT, config, run: str = "base") -> Path:
        written = temporary_folder(tmp_path / run, 7)
        file = written / "mp_rank_00_model_states.pt"
        torch.save({"module": model.state_dict(), "configuration": config.model_dump(mode="json")}, file)
        publish(written, tmp_path / run, 7, Layout(1, 0, "fp32"), {file.name: file_record(file)})
        return tmp_path / run / "global_step7"

    return write


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("method", "keys"), METHODS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_the_adapted_model_is_at_first_the_one_that_was_trained(make_model, make_config, save, tokens, method, keys, kernel):
    base = make_model(pos_emb=method, **keys)
    move_from_start(base)
    folder = save(base, make_config(pos_emb=method, **keys))
    adapted = make_model(seed=99, pos_emb=f"dape_{method}", dape_init="identity", dape_kernel_size=kernel, **keys)
    assert not torch.allclose(adapted(tokens), base(tokens), atol=1e-3)
    fill(adapted, fitting_weights(adapted, folder, adapt=True))
    torch.testing.assert_close(adapted(tokens), base(tokens), atol=1e-12, rtol=0)
    freeze(adapted, make_config(pos_emb=f"dape_{method}", trainable="dape", **keys))
    adapted(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    gradients = {name: parameter.grad for name, parameter in adapted.named_parameters() if parameter.grad is not None}
    assert all(".score_map." in name for name in gradients)
    outputs = [gradient for name, gradient in gradients.items() if "output_weight" in name]
    assert len(outputs) == 3 and all(gradient.abs().max() > 0 for gradient in outputs)


def test_the_usual_start_is_not_the_identity_and_differs_in_the_last_layer_only(make_model):
    usual, identity = (make_model(pos_emb="dape_alibi", dape_init=start).state_dict() for start in ("torch", "identity"))
    differing = {name.rsplit(".", 1)[1] for name in usual if not torch.equal(usual[name], identity[name])}
    assert differing == {"output_weight", "output_bias"}
    assert not any(value.any() for name, value in identity.items() if "score_map.output" in name)


@pytest.mark.parametrize(
    ("keys", "trained"),
    [
        ({"pos_emb": "dape_kerple", "trainable": "dape"}, {"hidden_weight", "hidden_bias", "output_weight", "output_bias"}),
        ({"pos_emb": "dape_kerple", "trainable": "positional"}, {"a", "p", "hidden_weight", "hidden_bias", "output_weight", "output_bias"}),
        ({"pos_emb": "kerple", "trainable": "positional"}, {"a", "p"}),
        ({"pos_emb": "learned", "trainable": "positional"}, {"table"}),
        ({"pos_emb": "dape_t5", "trainable": "positional", "no_weight_tying": True}, {"table"} | {
            "hidden_weight", "hidden_bias", "output_weight", "output_bias"
        }),
    ],
)  # fmt: skip
def test_what_is_trainable(make_config, keys, trained):
    config = make_config(**keys)
    model = GPT(config, 61)
    freeze(model, config)
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rsplit(".", 1)[1] for name in found} == trained and all("positional" in name for name in found)
    sizes = [parameter.numel() for parameter in found.values()]
    assert count_parameters(model) == (sum(sizes), sum(parameter.numel() for parameter in model.parameters()))


def test_with_activation_checkpointing_the_map_still_learns(make_model, make_config, tokens):
    """Though the segment's input, the frozen embedding's output, asks for no gradient."""
    keys = {"pos_emb": "dape_rotary", "dape_init": "identity", "trainable": "dape", "checkpoint_activations": True}
    model = make_model(**keys).train()
    freeze(model, make_config(**keys))
    model(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    assert all(p.grad.abs().max() > 0 for name, p in model.named_parameters() if "output_weight" in name)
    assert all(".score_map." in name for name, p in model.named_parameters() if p.grad is not None)


def test_nothing_to_train_is_an_error(make_config):
    config = make_config(pos_emb="alibi", trainable="positional")
    with pytest.raises(ConfigError, match="nothing would be trained, pos_emb 'alibi'"):
        freeze(GPT(config, 61), config)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"pos_emb": "kerple"}, "adapt: pos_emb: kerple has no DAPE map to add; write pos_emb: dape_kerple"),
        ({"load": None}, "adapt: there is nothing to start from"),
        ({"finetune": True}, "adapt: is finetune with a map that the checkpoint lacks; remove finetune: true"),
        ({"dape_init": "torch"}, "dape_init: adapt: true (--set) starts the map as the identity"),
        ({"pos_emb": "dape_fire"}, "write fire_activation: relu"),
        ({"pos_emb": "kerple", "adapt": False, "trainable": "dape"}, "trainable: pos_emb: kerple has no DAPE map to train"),
    ],
)
def test_keys_that_cannot_be_together(make_config, keys, words):
    config = make_config(**{"pos_emb": "dape_kerple", "adapt": True, "load": "there", "train_micro_batch_size_per_gpu": 1, **keys})
    with pytest.raises(ConfigError) as error:
        complete(config, 1, cuda=False)
    assert words in str(error.value) and len(str(error.value).splitlines()) == 1


def test_adapting_starts_as_the_identity_and_completing_again_changes_nothing(make_config):
    config = make_config(pos_emb="dape_kerple", adapt=True, load="there", train_micro_batch_size_per_gpu=1)
    once = complete(config, 1, cuda=False)
    assert once.positional.dape_init == "identity" and complete(once, 1, cuda=False) == once


def test_a_form_without_the_bias_has_no_identity(make_config):
    for method in ("rotary", "none"):  # their scores hold everything already
        GPT(make_config(pos_emb=f"dape_{method}", dape_form="s+f(s,b)", dape_init="identity"), 61)
    with pytest.raises(ConfigError, match="no map starts as the identity"):
        GPT(make_config(pos_emb="dape_alibi", dape_form="s+f(s,b)", dape_init="identity"), 61)


@pytest.mark.parametrize(
    ("base", "run", "words"),
    [
        ({"pos_emb": "alibi"}, {"pos_emb": "dape_none"}, "was trained with pos_emb: alibi; write pos_emb: dape_alibi"),
        ({"pos_emb": "dape_alibi"}, {"pos_emb": "dape_alibi"}, "has a DAPE map already; finetune: true"),
        ({"pos_emb": "rope"}, {"pos_emb": "dape_rotary", "rotary_pct": 0.5}, "rotary_pct: 1.0 in the checkpoint, 0.5 in this run"),
        ({"pos_emb": "alibi"}, {"pos_emb": "dape_alibi", "num_attention_heads": 8}, "heads: 4 in the checkpoint, 8 in this run"),
    ],
)  # fmt: skip
def test_another_model_is_refused_though_its_weights_would_fit(make_config, save, base, run, words):
    folder = save(GPT(make_config(**base), 61), make_config(**base))
    with pytest.raises(ConfigError) as error:
        check_adapts(make_config(**run), folder)
    assert words in str(error.value)


def test_the_same_model_under_other_names_and_other_training_is_accepted(make_config, save):
    folder = save(GPT(make_config(pos_emb="kerple"), 61), make_config(pos_emb="kerple"))
    check_adapts(make_config(pos_emb="dape_kerple_log", dape_kernel_size=3, hidden_dropout=0.1, attention_backend="eager"), folder)
    assert read_configuration(folder)["positional"]["pos_emb"] == "kerple"


@pytest.mark.parametrize(
    ("base", "run", "adapt", "words"),
    [
        ({"pos_emb": "kerple"}, {"pos_emb": "dape_alibi"}, True, ["the model lacks: layers.0.attention.positional.a", "without its"]),
        ({"pos_emb": "alibi"}, {"pos_emb": "dape_t5"}, True, ["it lacks: layers.0.attention.positional.table"]),
        ({"pos_emb": "dape_alibi"}, {"pos_emb": "dape_alibi"}, True, ["has DAPE maps already"]),
        ({"pos_emb": "alibi"}, {"pos_emb": "dape_alibi"}, False, ["it lacks: layers.0.attention.positional.score_map", "and 6 more"]),
        ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "intermediate_size": 8}, False, ["0.mlp.down.weight [48, 192] instead of [48, 8]"]),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named(make_config, save, base, run, adapt, words):
    folder = save(GPT(make_config(**base), 61), make_config(**base))
    with pytest.raises(CheckpointError) as error:
        fitting_weights(GPT(make_config(**run), 61), folder, adapt=adapt)
    assert all(part in str(error.value) for part in words)


def test_where_an_adapting_run_begins(make_config, save, tmp_path):
    base = save(GPT(make_config(pos_emb="alibi"), 61), make_config(pos_emb="alibi"))
    keys = {"pos_emb": "dape_alibi", "adapt": True, "load": str(base.parent), "save": str(tmp_path / "adapted")}
    training, evaluating = make_config(**keys), make_config(**keys, do_train=False)
    assert find_start(training) == Start(0, base, weights_only=True, adapt=True)
    assert find_start(evaluating) == Start(7, base, weights_only=True, adapt=True)
    with pytest.raises(ConfigError, match="adapt: `load` and `save` are the same folder"):
        find_start(make_config(**{**keys, "save": str(base.parent)}))
    own = save(GPT(training, 61), training, run="adapted")
    begun = find_start(training)
    assert (begun.step, begun.folder, begun.weights_only, begun.adapt) == (7, own, False, False)
    assert "adapt:" in begun.messages[0] and "going on from them" in begun.messages[0]
    assert find_start(evaluating) == Start(7, own, weights_only=True)


def test_generating_takes_the_adapted_model_and_before_there_is_one_the_base(make_config, save, tmp_path, capsys):
    base = make_config(pos_emb="alibi", tokenizer_type="CharLevelTokenizer", maximum_tokens=3, num_samples=1, device="cpu")
    vocabulary = build_tokenizer(base.tokenizer).vocab_size
    folder = save(GPT(base, vocabulary), base)
    keys = {"pos_emb": "dape_alibi", "adapt": True, "dape_init": "identity", "load": str(folder.parent), "save": str(tmp_path / "adapted")}
    config = make_config(**keys, tokenizer_type="CharLevelTokenizer", maximum_tokens=3, num_samples=1, device="cpu")
    assert sample_from_checkpoint(config) == 0
    assert f"sampling from {folder}" in capsys.readouterr().err
    own = save(GPT(config, vocabulary), config, run="adapted")
    assert sample_from_checkpoint(config) == 0
    assert f"sampling from {own}" in capsys.readouterr().err
