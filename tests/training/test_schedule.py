"""The learning rate by hand: warm-up, each decay, and what happens beyond the end."""

import math

import pytest

from megatron.config.optimizer import OptimizerBlock, OptimizerConfig, OptimizerParams
from megatron.training.schedule import learning_rate


def schedule(style: str, **keys) -> OptimizerConfig:
    block = OptimizerBlock(params=OptimizerParams(lr=1.0))
    return OptimizerConfig(**{"optimizer": block, "lr_decay_style": style, "warmup": 0.1, "min_lr": 0.1, **keys})


def test_warmup_is_linear_from_zero_and_ends_at_the_peak():
    config = schedule("cosine")
    assert [learning_rate(config, 100, step) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


@pytest.mark.parametrize(
    "style, middle, end, beyond",
    [
        ("constant", 1.0, 1.0, 1.0),
        ("linear", 0.55, 0.1, 0.1),
        ("cosine", 0.55, 0.1, 0.1),
        ("exponential", math.exp(-0.5), math.exp(-1), math.exp(-1)),
        ("inverse_sqrt", math.sqrt(10 / 55), math.sqrt(10 / 100), math.sqrt(10 / 500)),
    ],
)
def test_decays_by_hand(style, middle, end, beyond):
    config = schedule(style)
    assert learning_rate(config, 100, 55) == pytest.approx(middle)
    assert learning_rate(config, 100, 100) == pytest.approx(end)
    assert learning_rate(config, 100, 500) == pytest.approx(max(beyond, 0.1))


def test_decay_steps_are_their_own_key():
    config = schedule("linear", lr_decay_iters=50)
    assert learning_rate(config, 1000, 50) == pytest.approx(0.1)
    assert learning_rate(config, 1000, 5) == pytest.approx(1.0)


def test_no_warmup_starts_at_the_peak():
    assert learning_rate(schedule("constant", warmup=0.0), 100, 1) == 1.0


def test_warmup_over_the_whole_run_never_divides_by_zero():
    assert learning_rate(schedule("cosine", warmup=1.0), 100, 100) == pytest.approx(1.0)
    assert learning_rate(schedule("cosine", warmup=1.0), 100, 101) == pytest.approx(0.1)
