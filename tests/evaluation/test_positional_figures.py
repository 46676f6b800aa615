"""Figures of the positional encodings, once an evaluation."""

import pytest
import torch

from megatron.evaluation.positional import positional_figures


def test_every_layer_has_its_figures(make_model):
    model = make_model(pos_emb="kerple")
    figures = positional_figures(model)
    assert list(figures) == [f"layer{number}" for number in range(len(model.layers))]
    for layer, values in zip(model.layers, figures.values(), strict=True):
        assert values["p_mean"] == pytest.approx(layer.attention.positional.p.mean().item())
        assert values == layer.attention.positional.statistics()
    assert figures["layer0"] != figures["layer1"]


def test_an_encoding_that_serves_all_layers_is_there_once(make_model):
    figures = positional_figures(make_model(pos_emb="kerple", kerple_shared=True))
    assert list(figures) == ["shared"] and "a_mean" in figures["shared"]
    mapped = positional_figures(make_model(pos_emb="dape_kerple", kerple_shared=True))  # the map is each layer's own
    assert list(mapped) == ["layer0", "layer1", "layer2"]
    assert mapped["layer0"]["a_mean"] == mapped["layer1"]["a_mean"]
    assert mapped["layer0"]["dape_hidden_weight_norm"] != mapped["layer1"]["dape_hidden_weight_norm"]


@pytest.mark.parametrize("pos_emb", ["none", "rotary", "learned"])
def test_what_learns_nothing_that_is_measured_is_left_out(make_model, pos_emb):
    assert positional_figures(make_model(pos_emb=pos_emb)) == {}


def test_fires_figures(make_model):
    model = make_model(pos_emb="dape_fire", fire_threshold=6)
    with torch.no_grad():
        model.layers[1].attention.positional.threshold_multiplier.fill_(1.5)
        model.layers[1].attention.positional.c.fill_(0.25)
    figures = positional_figures(model)
    assert (figures["layer0"]["threshold"], figures["layer1"]["threshold"], figures["layer1"]["c"]) == (6.0, 9.0, 0.25)
    heads = model.layers[0].attention.positional.heads
    assert [name for name in figures["layer0"] if name.startswith("effective")] == [f"effective_length_head{n}" for n in range(heads)]


@pytest.mark.parametrize("pos_emb", ["dape_kerple", "kerple_power_both", "dape_fire", "t5", "transformer_xl", "cope"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(make_model, pos_emb, half):
    model = make_model(pos_emb=pos_emb).to(half)
    figures = positional_figures(model)
    assert figures == positional_figures(model.float()) != {}
