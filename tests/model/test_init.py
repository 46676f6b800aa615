"""Initial values: the distributions that the methods promise, independent of order and layout."""

import math
from contextlib import contextmanager

import pytest
import torch

from megatron.model.gpt import GPT
from megatron.model.init import initialise

SHAPE = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "no_weight_tying": True, "activation": "swiglu"}
STANDARD_DEVIATIONS = {
    "normal": 0.03,
    "scaled_normal": 0.03 / math.sqrt(8),
    "small_init": math.sqrt(2 / (5 * 128)),
    "wang_init": 2 / (4 * math.sqrt(128)),
}


@pytest.mark.parametrize("into", STANDARD_DEVIATIONS)
@pytest.mark.parametrize("back", STANDARD_DEVIATIONS)
def test_statistics(make_config, into: str, back: str) -> None:
    config = make_config(pos_emb="none", init_method=into, output_layer_init_method=back, init_method_std=0.03, **SHAPE)
    model = GPT(config, 128)
    initialise(model, config.model, 0)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            expected = 0.0 if name.endswith("bias") else 1.0
            assert (parameter == expected).all(), name
            continue
        method = back if name.endswith(("attention.output.weight", "mlp.down.weight")) else into
        n, std = parameter.numel(), STANDARD_DEVIATIONS[method]
        assert abs(parameter.mean()) < 5 * std / math.sqrt(n), name  # five standard errors
        assert abs(parameter.std() / std - 1) < 5 / math.sqrt(2 * n), name
        assert parameter.abs().max() > 3 * std, name  # normal, not uniform


def test_values_depend_on_seed_and_name_alone(make_config) -> None:
    def parameters(seed: int, **keys) -> dict[str, torch.Tensor]:
        config = make_config(pos_emb="dape_kerple", **keys)
        model = GPT(config, 61)
        torch.manual_seed(keys.get("num_layers", 0))  # the global state must not matter
        initialise(model, config.model, seed)
        return dict(model.named_parameters())

    few, many, other = parameters(1, num_layers=2), parameters(1, num_layers=3), parameters(2, num_layers=2)
    scaled = ("attention.output.weight", "mlp.down.weight")  # `scaled_normal` looks at the number of layers
    assert all(torch.equal(few[name], many[name]) for name in few if not name.endswith(scaled))
    assert all(not torch.equal(few[name], other[name]) for name in few if few[name].dim() > 1 or "positional" in name)
    matrices = [value.flatten()[:16] for name, value in few.items() if value.dim() > 1]
    assert len({tuple(values.tolist()) for values in matrices}) == len(matrices)


def test_sharded_parameters_are_gathered_first(make_config) -> None:
    config = make_config(pos_emb="kerple")
    model = GPT(config, 61)
    seen = []

    @contextmanager
    def gather(parameters):
        seen.extend(parameters)
        yield

    initialise(model, config.model, 1, gather)
    assert {id(parameter) for parameter in seen} == {id(parameter) for parameter in model.parameters()}
