"""Which parameters decay, whose Adam steps, and that no step is taken on a gradient that is not finite."""

import pytest
import torch
from torch import nn

from megatron.config import ConfigError
from megatron.config.optimizer import OptimizerBlock, OptimizerConfig, OptimizerParams
from megatron.training.optimizer import build_optimizer, parameter_groups, refuse_non_finite

CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.table = nn.Parameter(torch.ones(4, 2))
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def config(**keys) -> OptimizerConfig:
    params = {"lr": 0.1, **keys.pop("params", {})}
    return OptimizerConfig(optimizer=OptimizerBlock(params=OptimizerParams(**params), **keys.pop("block", {})), **keys)


def decays(**keys) -> dict[str, float]:
    model = Model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, config(**keys), {"table"})
    return {names[id(parameter)]: group["weight_decay"] for group in groups for parameter in group["params"]}


def test_matrices_decay_and_nothing_else():
    plain = {"linear.bias": 0.0, "norm.weight": 0.0, "norm.bias": 0.0}
    assert decays(weight_decay=0.3) == {"linear.weight": 0.3, "table": 0.0, **plain}
    assert decays(weight_decay=0.3, weight_decay_positional=True) == {"linear.weight": 0.3, "table": 0.3, **plain}
    assert decays(weight_decay=0.3, params={"weight_decay": 0.2}) == {"linear.weight": 0.2, "table": 0.0, **plain}


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_by_hand(kind):
    """First step of Adam: decay by lr x decay, then lr x sign(gradient), to within eps."""
    weight = nn.Parameter(torch.tensor([[2.0, -1.0]]))
    keys = config(block={"type": kind}, params={"betas": (0.9, 0.95)})
    optimizer = build_optimizer([{"params": [weight], "weight_decay": 0.5}], keys, CPU)
    weight.grad = torch.tensor([[3.0, -0.2]])
    optimizer.step()
    assert torch.allclose(weight, torch.tensor([[2.0 * 0.95 - 0.1, -1.0 * 0.95 + 0.1]]), atol=1e-6)


def test_an_implementation_that_is_absent_is_named():
    with pytest.raises(ConfigError, match="apex"):
        build_optimizer([{"params": [nn.Parameter(torch.ones(1))]}], config(block={"implementation": "apex"}), CPU)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_step_on_a_gradient_that_is_not_finite_here_or_elsewhere(bad):
    weight = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([{"params": [weight]}], config(), CPU)
    found_elsewhere = [False]
    refuse_non_finite(optimizer, lambda found: found or found_elsewhere[0])
    weight.grad = torch.tensor([1.0, bad])
    with pytest.raises(FloatingPointError):
        optimizer.step()
    weight.grad = torch.ones(2)
    found_elsewhere[0] = True
    with pytest.raises(FloatingPointError):
        optimizer.step()
    assert torch.equal(weight, torch.ones(2))
    found_elsewhere[0] = False
    optimizer.step()
    assert not torch.equal(weight, torch.ones(2))
