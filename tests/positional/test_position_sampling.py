"""Positions drawn at random: the draws themselves, models that work with them, and what is refused."""

import pytest
import torch

from megatron.config import ConfigError
from megatron.config.derive import complete
from megatron.config.methods import METHODS
from megatron.errors import UserError
from megatron.model.cache import SequenceCache
from megatron.positional.sampling import PositionSampling, position_sampling

LARGEST = 5000
RANDOMIZED = {"position_sampling": "randomized", "position_max": LARGEST}


def test_draws_are_distinct_and_ascending():
    sampling = PositionSampling(position_max=40, seed=3)
    for length in (1, 2, 17, 39, 40):
        drawn = sampling.draw(length, "a")
        assert drawn.dtype == torch.int64 and drawn.shape == (length,)
        assert drawn[0] >= 0 and drawn[-1] < 40 and (drawn.diff() > 0).all()
    assert sampling.draw(40, "a").tolist() == list(range(40))
    with pytest.raises(ValueError, match="larger"):
        sampling.draw(41, "a")


def test_draws_depend_on_seed_purpose_and_length_alone():
    sampling = PositionSampling(10**9, 3)
    batch = sampling.draw_batch(8, ["a", "b", "a"])
    assert torch.equal(batch[0], batch[2]) and torch.equal(batch[1], PositionSampling(10**9, 3).draw(8, "b"))
    others = [batch[1], PositionSampling(10**9, 4).draw(8, "a"), sampling.draw(9, "a")[:8], PositionSampling(10**9 - 1, 3).draw(8, "a")]
    assert not any(torch.equal(batch[0], other) for other in others)


def test_every_subset_is_as_likely():
    sampling, draws = PositionSampling(5, 0), 4000
    subsets = [tuple(row) for row in sampling.draw_batch(2, [str(number) for number in range(draws)]).tolist()]
    expected = draws / 10
    assert len(set(subsets)) == 10
    assert all(abs(subsets.count(subset) - expected) < 5 * (expected * 0.9) ** 0.5 for subset in set(subsets))  # five standard deviations


@pytest.mark.parametrize("base", [base for base, method in METHODS.items() if method.sees_positions])
@pytest.mark.parametrize("prefix", ["", "dape_"])
def test_models_work_with_drawn_positions(make_model, tokens, prefix, base):
    """Each sequence at its own positions, in one pass or decoded piece by piece."""
    model = make_model(pos_emb=prefix + base, max_position_embeddings=LARGEST, dape_kernel_size=3, num_layers=2, **RANDOMIZED)
    drawn = PositionSampling(LARGEST, seed=1).draw_batch(12, ["first", "second"])
    logits = model(tokens, position_ids=drawn)
    for row in range(2):
        torch.testing.assert_close(logits[row : row + 1], model(tokens[row : row + 1], position_ids=drawn[row]), atol=1e-9, rtol=0)
    assert (logits - model(tokens)).abs().max() > 1e-6
    model(tokens, tokens.roll(-1, dims=1), position_ids=drawn).mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    with torch.no_grad():
        cache = SequenceCache(len(model.layers))
        pieces = [model(tokens[:, a:b], position_ids=drawn[:, :b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 12))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize("base", METHODS)
def test_which_methods_look_at_positions_is_known(make_model, tokens, base):
    model = make_model(pos_emb=base, num_layers=1, max_position_embeddings=200)
    stretched = torch.arange(12) ** 2
    assert torch.equal(model(tokens), model(tokens, position_ids=stretched)) == (not METHODS[base].sees_positions)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"position_max": 99}, "position_max: has an effect only with"),
        ({"position_sampling": "randomized"}, "position_max: is missing"),
        ({"pos_emb": "nope"}, "position_sampling: pos_emb: nope does not look at the positions"),
        ({"pos_emb": "dape_cope"}, "position_sampling: pos_emb: dape_cope does not"),
        ({"pos_emb": "bipe_rotary"}, "position_sampling: pos_emb: bipe_rotary does not"),
        ({"position_max": 15}, "seq_length: 16 tokens.*position_max.* 15"),
        ({"position_max": 40, "eval_lengths": [8, 40, 41]}, "eval_lengths: 41 tokens.*position_max.* 40"),
        ({"pos_emb": "dape_learned", "max_position_embeddings": 99}, "position_max: 5000 positions.*max_position_embeddings.*not 99"),
    ],
)
def test_what_cannot_be_is_refused(make_config, keys, words):
    given = keys if keys.keys() & {"position_sampling"} or words.endswith("only with") else RANDOMIZED | keys
    with pytest.raises(ConfigError, match=words) as error:
        complete(make_config(**given), None)
    assert len(str(error.value).splitlines()) == 1


def test_lengths_end_where_positions_do(make_config, make_model):
    assert complete(make_config(**RANDOMIZED | {"position_max": 70}), None).evaluation.eval_lengths == [16, 32, 64]
    learned = {"pos_emb": "learned", "max_position_embeddings": 40, "position_max": 40}
    assert complete(make_config(**RANDOMIZED | learned), None).evaluation.eval_lengths == [16, 32]
    model = make_model(**RANDOMIZED)
    model.check_length(LARGEST)
    with pytest.raises(UserError, match="5001 tokens.*position_max 5000"):
        model.check_length(LARGEST + 1)


def test_positions_count_unless_they_are_drawn(make_config):
    assert position_sampling(make_config().positional, 1) is None
    assert position_sampling(make_config(**RANDOMIZED).positional, 1) == PositionSampling(LARGEST, 1)
