"""Attention in blocks of rows equals attention in one piece, for every method and map, every mask and cached keys."""

from dataclasses import replace

import pytest
import torch

from megatron.attention.eager import eager_attention
from megatron.attention.mask import AttentionMask
from megatron.attention.rows import ROWS, in_row_blocks
from megatron.config.methods import METHODS
from megatron.config.positional import PositionalConfig
from megatron.positional.build import build_positional

B, H, D = 2, 4, 6
N = 2 * ROWS + 13
VARIANTS = [(name, 1) for name in METHODS] + [(f"dape_{name}", kernel) for name in METHODS for kernel in (1, 5)]


def encoding(name: str, kernel: int):
    config = PositionalConfig(pos_emb=name, dape_kernel_size=kernel, dape_hidden_size=5, bipe_segment_tokens=[1])
    positional = build_positional(config, heads=H, head_dim=D, hidden_size=H * D, seq_length=N, max_position_embeddings=N).double()
    positional.initialise(torch.Generator().manual_seed(3), 0.5)
    return positional


def masks():
    places = torch.arange(N)
    causal = AttentionMask(places, places)
    documents = torch.where(places < 70, 0, 1).expand(B, N).clone()
    documents[1, :80] = -1  # padding on the left, longer than a block
    return {
        "causal": causal,
        "window": replace(causal, window=30),
        "documents": replace(causal, query_documents=documents, key_documents=documents),
        "cached": AttentionMask(places[20:], places),
    }


@pytest.mark.parametrize(("name", "kernel"), VARIANTS)
@pytest.mark.parametrize("mask", masks())
def test_blocks_of_rows_equal_one_piece(name: str, kernel: int, mask: str) -> None:
    mask, positional = masks()[mask], encoding(name, kernel)
    generator = torch.Generator().manual_seed(0)
    queries = len(mask.query_places)
    q = torch.randn(B, H, queries, D, dtype=torch.float64, generator=generator)
    k, v = (
        torch.randn(B, 2 if not positional.acts_on & {"scores"} else H, N, D, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    calls = []

    def counted(q, *rest):
        calls.append(q.shape[-2])
        return eager_attention(q, *rest)

    with torch.no_grad():
        whole = eager_attention(q, k, v, positional, mask.query_places, mask.key_places, mask)
        parts = in_row_blocks(counted)(q, k, v, positional, mask.query_places, mask.key_places, mask)
    assert len(calls) == -(-queries // ROWS) and sum(calls) == queries
    assert torch.allclose(parts, whole, rtol=1e-11, atol=1e-11)


def test_with_gradients_or_without_causality_it_is_one_piece() -> None:
    calls = []
    attend = in_row_blocks(lambda q, *rest: calls.append(q.shape[-2]) or eager_attention(q, *rest))
    positional, places = encoding("none", 1), torch.arange(N)
    x = torch.randn(1, H, N, D, dtype=torch.float64)
    attend(x, x, x, positional, places, places, AttentionMask(places, places))
    with torch.no_grad():
        attend(x, x, x, positional, places, places, AttentionMask(places, places, causal=False))
    assert calls == [N, N]
