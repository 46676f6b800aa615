"""A single attention's scores from hidden states, through every hook: what the tests of all methods look at."""

import torch
from torch import Tensor
from variants import FORMS

from megatron.attention.eager import masked_scores
from megatron.attention.mask import AttentionMask
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding
from megatron.positional.build import build_positional

HEAD_DIM = 4


def encoding_of(pos_emb: str, kernel: int = 1, form: str = FORMS[0], heads: int = 5, **keys) -> PositionalEncoding:
    """In float64, initialised, with tables of zeros made random so that they count."""
    keys = {"dape_hidden_size": 7, "fire_hidden_size": 6, "bipe_segment_tokens": [1], "bipe_segment_length": 20} | keys
    config = PositionalConfig(pos_emb=pos_emb, dape_kernel_size=kernel, dape_form=form, **keys)
    sizes = {"heads": heads, "head_dim": HEAD_DIM, "hidden_size": heads * HEAD_DIM, "seq_length": 9, "max_position_embeddings": 200}
    encoding = build_positional(config, **sizes).double()
    generator = torch.Generator().manual_seed(heads)
    encoding.initialise(generator, 0.5)
    for parameter in encoding.parameters():
        if not parameter.any():
            parameter.data.normal_(generator=generator)
    return encoding


def hidden_states(heads: int, tokens: int, batch: int = 2, seed: int = 0) -> Tensor:
    """[b, n, hidden], float64."""
    return torch.randn(batch, tokens, heads * HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scores_of(encoding: PositionalEncoding, x: Tensor, positions: Tensor, rows: slice = slice(None), **mask) -> Tensor:
    """x [b, n, hidden] at positions [n] or [b, n] -> masked scores [b, h, rows, n]; `mask` are fields of AttentionMask."""
    if "embed" in encoding.acts_on:
        x = x + encoding.embed(positions)
    q, k = (each.unflatten(-1, (encoding.heads, -1)).transpose(1, 2) for each in (x, x.cos()))  # [b, h, n, d]
    q, k = encoding.rotate(q, k, positions, positions)
    places = torch.arange(x.shape[1])
    documents = mask.pop("documents", None)
    if documents is not None:
        mask |= {"query_documents": documents[:, rows], "key_documents": documents}
    allowed = AttentionMask(places[rows], places, **mask)
    return masked_scores(q[:, :, rows], k, encoding, positions[..., rows], positions, allowed)
