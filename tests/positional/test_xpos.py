"""xPos against its formula pair by pair, at lengths that half precision can and cannot hold, and in decoding with a cache."""

import math

import pytest
import torch
from torch.testing import assert_close

from megatron.attention.mask import AttentionMask
from megatron.attention.sdpa import sdpa_attention
from megatron.config.positional import PositionalConfig, RotaryScaling
from megatron.config.xpos_span import longest_span
from megatron.errors import UserError
from megatron.model.cache import SequenceCache
from megatron.positional.build import build_positional

EXACT = {"atol": 1e-10, "rtol": 0}
KINDS = [torch.float16, torch.bfloat16, torch.float32]


def xpos(head_dim: int = 8, **keys):
    keys = {"pos_emb": "xpos"} | keys
    return build_positional(
        PositionalConfig(**keys), heads=2, head_dim=head_dim, hidden_size=2 * head_dim, seq_length=16, max_position_embeddings=16
    )


def states(tokens: int, batch: int = 1, head_dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [b, 2, n, d], float64."""
    return torch.randn(2, batch, 2, tokens, head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(tokens)).unbind()


def products(encoding, q, k, positions) -> torch.Tensor:
    """q.k of all pairs [b, h, n, n]."""
    q, k = encoding.rotate(q, k, positions, positions)
    return q @ k.mT


@pytest.mark.parametrize(("head_dim", "pct"), [(8, 1.0), (10, 0.6)])
@pytest.mark.parametrize("scaling", [{}, {"type": "linear", "factor": 2.0}, {"type": "yarn", "factor": 4.0, "attention_factor": 1.5}])
def test_scores_are_the_formula(head_dim, pct, scaling):
    """In the paper's complex form: zeta^((i - j) / base) Re(q conj(k) e^(i (i - j) theta)) for each pair; 40 tokens, a base of 16."""
    encoding = xpos(head_dim, rotary_pct=pct, xpos_scale_base=16.0, rotary_scaling=RotaryScaling(**scaling))
    n, (q, k) = int(head_dim * pct), states(40, head_dim=head_dim)
    thetas = encoding.scaling.inverse_frequencies(torch.tensor(40.0, dtype=torch.float64)).tolist()  # tested with rotary_scaling
    distances = (torch.arange(40)[:, None] - torch.arange(40)).double()
    wanted = q[..., n:] @ k[..., n:].mT
    for pair, theta in enumerate(thetas):
        zeta = (2 * pair / n + 0.4) / 1.4
        query, key = (torch.complex(x[..., pair], x[..., pair + n // 2]) for x in (q, k))
        turned = query[..., :, None] * key.conj()[..., None, :] * torch.exp(1j * distances * theta)
        wanted = wanted + encoding.scaling.attention_factor**2 * zeta ** (distances / 16) * turned.real
    assert_close(products(encoding, q, k, torch.arange(40)), wanted, atol=1e-10, rtol=1e-11)


def test_far_keys_fade_and_a_large_scale_base_is_plain_rotary():
    q, k = states(30)
    positions = torch.arange(30) * 100
    plain = products(xpos(pos_emb="rotary"), q, k, positions)
    assert_close(products(xpos(xpos_scale_base=1e13), q, k, positions), plain, atol=1e-8, rtol=0)
    slowest = (0.75 + 0.4) / 1.4  # zeta of the last of 4 pairs
    bound = slowest ** (2000 / 512) * q[..., 20, :].norm() * k[..., 0, :].norm()
    assert products(xpos(), q, k, positions)[..., 20, 0].abs().max() < bound


def test_only_differences_of_positions_count_for_each_batch_member():
    encoding, (q, k) = xpos(xpos_scale_base=8.0), states(12, batch=2)
    positions = torch.stack([torch.arange(12), 7 * torch.arange(12) + 5000])
    together = products(encoding, q, k, positions)
    for member, moved in enumerate((torch.arange(12) + 123, 7 * torch.arange(12) - 30)):
        assert_close(products(encoding, q, k, moved)[member], together[member], atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_long_sequences(kind):
    """32768 tokens, of which some are looked at: as exact as one rounding of queries and keys allows, and finite everywhere."""
    positions = torch.tensor([0, 1, 5, 100, 5000, 16384, 30000, 32700, 32766, 32767])
    q, k = states(len(positions))
    encoding = xpos()
    q, k = (x.to(kind).requires_grad_() for x in (q, k))
    turned = encoding.rotate(q, k, positions, positions)
    scores = turned[0].float() @ turned[1].float().mT
    assert scores.isfinite().all()
    exact = products(encoding, q.double(), k.double(), positions)
    sizes = q.double().norm(dim=-1)[..., :, None] * k.double().norm(dim=-1)[..., None, :]
    seen = torch.ones(len(positions), len(positions)).tril().bool()
    assert ((scores - exact).abs() <= (2 * torch.finfo(kind).eps + 8e-3) * sizes)[..., seen].all()  # 32768 radians: 4e-3 in float32, twice
    documents = torch.tensor([[-1] * 2 + [0] * 8])
    for mask in ({}, {"query_documents": documents, "key_documents": documents}):
        places = AttentionMask(torch.arange(10), torch.arange(10), **mask)
        y = sdpa_attention(*turned, q, encoding, positions, positions, places)
        assert y.isfinite().all() and all(grad.isfinite().all() for grad in torch.autograd.grad(y.sum(), (q, k), retain_graph=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_span_stays_in_range(kind):
    longest = longest_span(512.0, torch.finfo(kind).max, torch.finfo(torch.float32).max)
    assert longest > (5000 if kind == torch.float16 else 32768)
    encoding, x = xpos(), torch.full((1, 2, 2, 8), 30.0, dtype=kind)
    ends = torch.tensor([0, longest - 1])
    q, k = encoding.rotate(x, x, ends, ends)
    assert q.isfinite().all() and k.isfinite().all() and (q.float() @ k.float().mT).isfinite().all()


def test_spans_beyond_a_type_are_refused():
    encoding, x = xpos(), torch.ones(1, 2, 2, 8)
    near, far = torch.tensor([[0, 4000]]), torch.tensor([[0, 8000]])
    encoding.rotate(x.half(), x.half(), near, near)
    encoding.rotate(x, x, far, far)
    with pytest.raises(UserError, match="spans 8001 tokens.*xpos_scale_base 512.*float16.*bfloat16 or float32"):
        encoding.rotate(x.half(), x.half(), far, far)
    many = torch.ones(1, 1, 40000, 8)
    with pytest.raises(UserError, match="spans 40000 tokens.*float32"):
        encoding.rotate(many, many, torch.arange(40000), torch.arange(40000))
    documents = torch.arange(40000) % 5000  # positions restart in each document
    encoding.rotate(many, many, documents, documents)
    xpos(xpos_scale_base=2048.0).rotate(many, many, torch.arange(40000), torch.arange(40000))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_one_rounding(kind):
    (q, k), positions = states(4), torch.tensor([0, 1, 1000, 2000])
    wanted = xpos().rotate(q.to(kind).double(), k.to(kind).double(), positions, positions)
    for found, exact in zip(xpos().to(kind).rotate(q.to(kind), k.to(kind), positions, positions), wanted, strict=True):
        assert found.dtype == kind
        pairs = exact.unflatten(-1, (2, 4)).norm(dim=-2).repeat(1, 1, 1, 2)  # float32's angles (2000 radians: 1.2e-4) turn within a pair
        assert ((found.double() - exact).abs() <= (torch.finfo(kind).eps + 3e-4) * pairs).all()


@pytest.mark.parametrize(
    "keys", [{}, {"pos_emb": "dape_xpos", "dape_kernel_size": 3}, {"rotary_scaling": {"type": "linear", "factor": 2.0}}], ids=str
)
@torch.no_grad()
def test_decoding_is_the_full_pass(make_model, tokens, keys):
    """With a base so small that the decay counts; left padding, batch, and past the training length of 8."""
    model = make_model(**({"pos_emb": "xpos", "xpos_scale_base": 3.0, "seq_length": 8, "num_kv_heads": 2} | keys))
    padding, places = torch.tensor([[3], [0]]), torch.arange(12)
    padded, documents = torch.where(places < padding, 0, tokens), torch.where(places < padding, -1, 0)
    positions, cache = (places - padding).clamp(min=0), SequenceCache(len(model.layers))
    logits = torch.cat(
        [
            model(padded[:, start:stop], position_ids=positions[:, :stop], document_ids=documents[:, :stop], cache=cache)
            for start, stop in ((0, 5), (5, 6), (6, 9), (9, 10), (10, 11), (11, 12))
        ],
        dim=1,
    )
    assert_close(logits[0, 3:], model(tokens[:1, 3:])[0], **EXACT)
    assert_close(logits[1], model(tokens[1:])[0], **EXACT)
    other = make_model(**({"pos_emb": "xpos", "xpos_scale_base": 4.0, "seq_length": 8, "num_kv_heads": 2} | keys))
    assert (other(tokens) - model(tokens)).abs().max() > 1e-3 and math.isfinite(logits.sum())
