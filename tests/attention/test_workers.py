"""Blocks dealt out over threads: all of them, once each; the same attention on any number of threads; torch's own threads left alone."""

import threading

import pytest
import torch

from megatron.attention.blockwise import blockwise_attention
from megatron.attention.mask import AttentionMask
from megatron.attention.workers import deal_out
from megatron.config.positional import PositionalConfig
from megatron.positional.build import build_positional

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    """torch's threads during a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_every_item_is_worked_on_once_and_costs_are_even(threads, count):
    shares = deal_out(lambda share: list(share), list(range(count, 0, -1)), CPU)
    assert sorted(sum(shares, [])) == list(range(1, count + 1))
    assert len(shares) == min(threads, count)
    assert max(map(sum, shares)) - min(map(sum, shares)) <= count


def test_a_worker_computes_on_one_core_with_the_callers_choice_of_gradients(threads):
    seen = lambda share: (torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name)  # noqa: E731
    with torch.no_grad():
        found = deal_out(seen, list(range(6)), CPU)
    assert all(not enabled for _, enabled, _ in found)
    assert threads == 1 or [(number, name.startswith("attention")) for number, _, name in found] == [(1, True)] * threads
    assert torch.get_num_threads() == threads
    later = []
    thread = threading.Thread(target=lambda: later.append((torch.ones(1).sum(), torch.get_num_threads())))
    thread.start()
    thread.join()
    assert later[0][1] == threads  # what a thread started afterwards gets


def test_an_error_in_a_worker_reaches_the_caller(threads):
    def fail(share):
        raise ValueError("a worker's own")

    with pytest.raises(ValueError, match="a worker's own"):
        deal_out(fail, [1, 2, 3], CPU)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "pos_emb,kernel", [("dape_kerple_log", 1), ("dape_kerple_log", 3), ("dape_fire", 3), ("cope", 1), ("kerple_power_both", 1)]
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_number_of_threads_changes_nothing(pos_emb, kernel, dropout):
    config = PositionalConfig(pos_emb=pos_emb, dape_kernel_size=kernel, dape_hidden_size=5, cope_max_position=9)
    positional = build_positional(config, heads=4, head_dim=6, hidden_size=24, seq_length=50, max_position_embeddings=400).double()
    generator = torch.Generator().manual_seed(0)
    positional.initialise(generator, 0.5)
    q, k, v = (torch.randn(2, 4, 300, 6, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3))
    places, before, found = torch.arange(300), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)
            output = blockwise_attention(q, k, v, positional, places, places, AttentionMask(places, places), dropout)
            found.append((output, *torch.autograd.grad(output.square().sum(), [q, k, v, *positional.parameters()], allow_unused=True)))
    finally:
        torch.set_num_threads(before)
    for each in found[1:]:
        for one, other in zip(found[0], each, strict=True):
            assert one is other is None or (one - other).abs().max() <= 1e-12 * (1 + one.abs().max())
