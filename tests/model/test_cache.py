"""Decoding with a key/value cache is the full forward pass."""

import pytest
import torch

from megatron.config.methods import METHODS
from megatron.model.cache import KeyValueCache, SequenceCache

MAPPED = [{"pos_emb": "dape_kerple"}, {"pos_emb": "dape_alibi", "dape_kernel_size": 3}, {"pos_emb": "dape_learned"}]
ALL = [{"pos_emb": base} for base in sorted(METHODS)] + MAPPED
EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.mark.parametrize("keys", ALL, ids=str)
@pytest.mark.parametrize("backend", ["auto", "eager"])
@torch.no_grad()
def test_decoding_is_the_full_pass(make_model, tokens, keys, backend) -> None:
    """Beginning with 5 tokens, then 1, 3 and 1, 1, 1: past the training length of 8 too."""
    model = make_model(seq_length=8, num_kv_heads=2, attention_backend=backend, **keys)
    cache = SequenceCache(len(model.layers))
    pieces = [model(piece, cache=cache) for piece in tokens.split([5, 1, 3, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens), **EXACT)
    assert all(layer.length == 12 for layer in cache.layers)


@pytest.mark.parametrize("keys", ALL, ids=str)
@torch.no_grad()
def test_decoding_with_left_padding(make_model, tokens, keys) -> None:
    model = make_model(**keys)
    padding, places = torch.tensor([[3], [0]]), torch.arange(12)
    padded, positions = torch.where(places < padding, 0, tokens), (places - padding).clamp(min=0)
    documents = torch.where(places < padding, -1, 0)
    cache = SequenceCache(len(model.layers))
    pieces = []
    for start, stop in ((0, 7), (7, 8), (8, 12)):
        pieces.append(model(padded[:, start:stop], position_ids=positions[:, :stop], document_ids=documents[:, :stop], cache=cache))
    logits = torch.cat(pieces, dim=1)
    torch.testing.assert_close(logits[0, 3:], model(tokens[:1, 3:])[0], **EXACT)
    torch.testing.assert_close(logits[1], model(tokens[1:])[0], **EXACT)


def test_growth() -> None:
    cache = KeyValueCache()
    k = torch.randn(2, 3, 40, 4)
    for start, stop in ((0, 5), (5, 6), (6, 30), (30, 40)):
        keys, values = cache.append(k[:, :, start:stop], -k[:, :, start:stop])
        assert torch.equal(keys, k[:, :, :stop]) and torch.equal(values, -k[:, :, :stop])
