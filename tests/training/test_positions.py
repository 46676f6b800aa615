"""Positions of training sequences: drawn by place in the global batch, whatever the layout, and restarted in documents."""

import pytest
import torch

from megatron.data.loader import training_batches
from megatron.parallel.distributed import Processes
from megatron.training import step as step_module
from megatron.training.step import choose_positions, train_step

EOD, N, BATCH = 3, 16, 8
RANDOMIZED = {"position_sampling": "randomized", "position_max": 300}


class Numbered:
    """Sample k is the number k, n + 1 times."""

    def __getitem__(self, number):
        return torch.full((N + 1,), number).numpy()


class Engine:
    """Takes down the positions that the model would get, by the number of the sample."""

    def __init__(self, accumulation: int):
        self.accumulation, self.seen, self.optimizer = accumulation, {}, type("Optimizer", (), {"param_groups": []})

    def gradient_accumulation_steps(self):
        return self.accumulation

    def __call__(self, tokens, labels, position_ids, document_ids):
        self.seen |= {int(row[0]): positions.tolist() for row, positions in zip(tokens, position_ids, strict=True)}
        return tokens.float()

    def backward(self, loss): ...

    def step(self): ...

    def was_step_applied(self):
        return True

    def get_global_grad_norm(self):
        return 0.0


def seen_in_steps_4_and_5(config, ranks: int, micro: int, monkeypatch) -> dict[int, list[int]]:
    """Sample -> positions, over all ranks."""
    monkeypatch.setattr(step_module, "agree", lambda loss, stop, processes: (float(loss), stop))
    seen, accumulation = {}, BATCH // (ranks * micro)
    for rank in range(ranks):
        layout = {"global_batch": BATCH, "micro_batch": micro, "accumulation": accumulation}
        place = {"data_parallel_rank": rank, "data_parallel_size": ranks}
        batches = training_batches(Numbered(), start_step=3, steps=2, num_workers=0, **layout, **place)
        engine, processes = Engine(accumulation), Processes(rank, ranks, torch.device("cpu"))
        for step in (4, 5):
            train_step(engine, batches, config, EOD, processes, step, 0.1, False)
        seen |= engine.seen
    return seen


def test_positions_do_not_depend_on_the_layout(make_config, monkeypatch):
    config = make_config(**RANDOMIZED, **{"zero_optimization.stage": 1})
    alone = seen_in_steps_4_and_5(config, 1, 8, monkeypatch)
    assert sorted(alone) == list(range(24, 40))
    assert len({tuple(positions) for positions in alone.values()}) == 16  # each sequence of each step has its own
    for ranks, micro in ((1, 2), (2, 4), (2, 1), (4, 2)):
        assert seen_in_steps_4_and_5(config, ranks, micro, monkeypatch) == alone
    assert seen_in_steps_4_and_5(make_config(seed=1, **RANDOMIZED, **{"zero_optimization.stage": 1}), 1, 8, monkeypatch) != alone


@pytest.mark.parametrize("sampling", [{}, RANDOMIZED])
def test_a_document_that_starts_anew_starts_with_the_first_positions(make_config, sampling):
    tokens = torch.tensor([[1, 2, EOD, 4, EOD, 6, 7, 8], [1, 2, 4, 4, 5, 6, 7, EOD]])
    restarted = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], list(range(8))])
    whole = choose_positions(tokens, make_config(**sampling), EOD, 2, 0)
    positions = choose_positions(tokens, make_config(reset_position_ids=True, **sampling), EOD, 2, 0)
    if sampling:
        wanted = [[whole[row, place] for place in places] for row, places in enumerate(restarted.tolist())]
        assert positions.tolist() == wanted and len(set(whole[0].tolist())) == 8
    else:
        assert whole is None and torch.equal(positions, restarted)
