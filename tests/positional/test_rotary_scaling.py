"""Angles beyond the training length: against transformers, against the papers' formulas pair by pair, and in decoding with a cache."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig, RotaryScaling
from megatron.model.cache import SequenceCache
from megatron.positional.build import build_positional

ORIGINAL = 8  # tokens, the training length of the encodings here
SCALINGS = {
    "none": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.1},
    "longrope": {"factor": 3.0, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]},
}
ALL = [{"type": name} | keys for name, keys in SCALINGS.items()]
EXACT = {"atol": 1e-10, "rtol": 0}
each = pytest.mark.parametrize("scaling", ALL, ids=lambda scaling: scaling["type"])


def rotary(scaling: dict, head_dim: int = 12, base: float = 10000.0, pct: float = 1.0, original: int = ORIGINAL):
    config = PositionalConfig(pos_emb="rotary", rotary_pct=pct, rotary_emb_base=base, rotary_scaling=RotaryScaling(**scaling))
    return build_positional(
        config, heads=2, head_dim=head_dim, hidden_size=2 * head_dim, seq_length=original, max_position_embeddings=original
    )


def states(tokens: int, batch: int = 1, head_dim: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [b, 2, n, d], float64."""
    return torch.randn(2, batch, 2, tokens, head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(tokens)).unbind()


@pytest.mark.parametrize("length", [1, 100, 512, 513, 5000])
@pytest.mark.parametrize(("head_dim", "pct", "base"), [(64, 1.0, 10000.0), (16, 0.5, 500.0), (128, 0.25, 1e6)])
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "yarn_given", "longrope", "longrope_given"])
def test_transformers_has_the_same_frequencies(kind, head_dim, pct, base, length):
    pairs = int(head_dim * pct) // 2
    keys = {
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 3.0},
        "yarn": {"factor": 8.0},
        "yarn_given": {"factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": 1.3},
        "longrope": {"factor": 4.0},
        "longrope_given": {"factor": 4.0, "attention_factor": 1.1},
    }[kind]
    kind = kind.removesuffix("_given")
    if kind == "longrope":
        keys |= {"short_factor": [1 + m / 50 for m in range(pairs)], "long_factor": [1 + m for m in range(pairs)]}
    theirs = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        rope_parameters={
            "rope_type": kind,
            "rope_theta": base,
            "partial_rotary_factor": pct,
            "original_max_position_embeddings": 512,
        }
        | keys,
    )
    wanted, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=length)
    scaling = rotary({"type": kind} | keys, head_dim, base, pct, original=512).scaling
    found = scaling.inverse_frequencies(torch.tensor(float(length)))
    assert found.dtype == torch.float32 and found.shape == wanted.shape == (pairs,)
    assert_close(found, wanted, atol=0, rtol=2e-5)
    assert scaling.attention_factor == pytest.approx(factor, rel=1e-12)


def angle_of(scaling: dict, pair: int, length: int, n: int = 12, base: float = 10000.0) -> float:
    """Radians a position, from the papers, for an original length of 8."""
    plain = base ** (-2 * pair / n)
    factor = scaling.get("factor")
    if scaling["type"] == "linear":
        return plain / factor
    if scaling["type"] == "ntk":
        return plain * factor ** (-2 * pair / (n - 2))
    if scaling["type"] == "dynamic":
        return plain * (factor * max(length, ORIGINAL) / ORIGINAL - factor + 1) ** (-2 * pair / (n - 2))
    if scaling["type"] == "longrope":
        return plain / scaling["long_factor" if length > ORIGINAL else "short_factor"][pair]
    if scaling["type"] == "yarn":
        fast, slow = (
            n * math.log(ORIGINAL / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (scaling["beta_fast"], scaling["beta_slow"])
        )
        divided = min(1.0, max(0.0, (pair - max(0, math.floor(fast))) / (math.ceil(slow) - max(0, math.floor(fast)))))
        return divided * plain / factor + (1 - divided) * plain
    return plain


@each
@pytest.mark.parametrize("length", [5, 8, 9, 30])
def test_rotation_is_its_formula(scaling, length):
    """Every pair of every query and key, written plainly; the last two of 14 components do not rotate."""
    encoding = rotary(scaling, head_dim=14, pct=0.86)
    q, k = states(length, head_dim=14)
    size = {"yarn": 0.1 * math.log(4) + 1, "longrope": math.sqrt(1 + math.log(3) / math.log(8))}.get(scaling["type"], 1.0)
    for x, found in zip((q, k), encoding.rotate(q, k, torch.arange(length), torch.arange(length)), strict=True):
        wanted = x.clone()
        for position in range(length):
            for pair in range(6):
                angle = position * angle_of(scaling, pair, length)
                first, second = x[..., position, pair], x[..., position, pair + 6]
                wanted[..., position, pair] = size * (math.cos(angle) * first - math.sin(angle) * second)
                wanted[..., position, pair + 6] = size * (math.cos(angle) * second + math.sin(angle) * first)
        assert_close(found, wanted, atol=1e-12, rtol=0)


def test_ntk_leaves_the_fastest_pair_and_slows_the_slowest_as_linear_does():
    length = torch.tensor(30.0, dtype=torch.float64)
    none, linear, ntk = (rotary(scaling).scaling.inverse_frequencies(length) for scaling in ALL[:3])
    assert ntk[0] == none[0] and ntk[-1].item() == pytest.approx(linear[-1].item(), rel=1e-12)


@each
def test_batch_members_have_lengths_of_their_own(scaling):
    encoding, (q, k) = rotary(scaling), states(12, batch=3)
    positions = torch.stack([torch.arange(12), torch.arange(12) % 5, torch.arange(12) + 30])
    together = encoding.rotate(q, k, positions, positions)
    for member in range(3):
        alone = encoding.rotate(q[member : member + 1], k[member : member + 1], positions[member], positions[member])
        for one, all_of_them in zip(alone, together, strict=True):
            assert_close(one, all_of_them[member : member + 1], atol=1e-12, rtol=0)


@each
def test_a_long_sequence_leaves_no_trace(scaling):
    encoding = rotary(scaling)
    (q, k), (long_q, long_k) = states(6), states(40)
    short, long = torch.arange(6), torch.arange(40)
    first, first_long = encoding.rotate(q, k, short, short), encoding.rotate(long_q, long_k, long, long)
    again, again_long = encoding.rotate(q, k, short, short), encoding.rotate(long_q, long_k, long, long)
    assert all(map(torch.equal, (*first, *first_long), (*again, *again_long)))
    differs = not torch.equal(first_long[1][..., :6, :], encoding.rotate(long_q[..., :6, :], long_k[..., :6, :], short, short)[1])
    assert differs == encoding.rotates_by_length == (scaling["type"] in ("dynamic", "longrope"))


@each
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_angles_do_not_lose_positions_in_half_precision(scaling, kind):
    encoding, (q, k) = rotary(scaling).to(kind), states(3)
    positions = torch.tensor([4097, 4098, 4100])
    wanted = encoding.rotate(q.to(kind).double(), k.to(kind).double(), positions, positions)
    for found, exact in zip(encoding.rotate(q.to(kind), k.to(kind), positions, positions), wanted, strict=True):
        assert found.dtype == kind
        assert ((found.double() - exact).abs() <= torch.finfo(kind).eps * exact.abs() + 4e-3).all()  # 4100 radians: 2.4e-4 in float32


def decoded(model, tokens, pieces, **ids) -> torch.Tensor:
    """Logits of `tokens`, fed in pieces."""
    cache, logits, stop = SequenceCache(len(model.layers)), [], 0
    for piece in pieces:
        stop += piece
        seen = {name: value[..., :stop] for name, value in ids.items()}
        logits.append(model(tokens[:, stop - piece : stop], cache=cache, **seen))
    return torch.cat(logits, dim=1)


@each
@pytest.mark.parametrize("pos_emb", ["rotary", "dape_rotary"])
@torch.no_grad()
def test_a_decoded_token_is_that_of_the_whole_sequence_so_far(make_model, tokens, scaling, pos_emb):
    """Past the original length of 8. In deeper layers of a model whose angles go by the length, earlier tokens are what they were."""
    by_length = scaling["type"] in ("dynamic", "longrope")
    model = make_model(num_layers=1 if by_length else 3, seq_length=8, num_kv_heads=2, pos_emb=pos_emb, rotary_scaling=scaling)
    logits = decoded(model, tokens, [5, 1, 1, 1, 1, 1, 1, 1])
    for stop in range(5, 13):
        assert_close(logits[:, stop - 1], model(tokens[:, :stop])[:, -1], **EXACT)
    assert_close(decoded(model, tokens, [3, 9])[:, 3:], model(tokens)[:, 3:], **EXACT)  # a prompt over the original length
    assert_close(logits[:, :5], model(tokens[:, :5]), **EXACT)


@each
@torch.no_grad()
def test_decoding_in_all_layers_within_the_original_length(make_model, tokens, scaling):
    model = make_model(seq_length=12, rotary_scaling=scaling)
    assert_close(decoded(model, tokens, [5, 1, 3, 1, 1, 1]), model(tokens), **EXACT)


@each
@torch.no_grad()
def test_decoding_with_left_padding(make_model, tokens, scaling):
    """Members of 9 and 12 tokens over an original length of 10: one stays below it."""
    model = make_model(num_layers=1, seq_length=10, rotary_scaling=scaling)
    padding, places = torch.tensor([[3], [0]]), torch.arange(12)
    padded, documents = torch.where(places < padding, 0, tokens), torch.where(places < padding, -1, 0)
    for positions in ((places - padding).clamp(min=0), places - padding):  # whatever positions the padding has
        logits = decoded(model, padded, [7, 1, 1, 1, 1, 1], position_ids=positions, document_ids=documents)
        for stop in (7, 8, 10, 12):
            assert_close(logits[0, stop - 1], model(tokens[:1, 3:stop])[0, -1], **EXACT)
            assert_close(logits[1, stop - 1], model(tokens[1:, :stop])[0, -1], **EXACT)


@torch.no_grad()
def test_the_longest_document_of_a_sequence_is_its_length(make_model, tokens):
    model = make_model(seq_length=8, rotary_scaling=ALL[3])
    for sizes, same in (((5, 7), True), ((2, 10), False)):
        positions = torch.cat([torch.arange(size) for size in sizes])
        documents = torch.tensor([[0] * sizes[0] + [1] * sizes[1]] * 2)
        first = model(tokens, position_ids=positions, document_ids=documents)[:, : sizes[0]]
        assert torch.allclose(first, model(tokens[:, : sizes[0]]), **EXACT) == same


@pytest.mark.parametrize(
    ("keys", "sizes", "words"),
    [
        ({"type": "linear"}, {}, "rotary_scaling.factor.*missing"),
        ({"type": "ntk", "factor": 2.0}, {"head_dim": 2}, "at least 4 rotating"),
        ({"type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": [1.0] * 6}, {}, "short_factor.*1 factors for 6 pairs"),
        ({"factor": 2.0}, {}, "rotary_scaling.factor.*no effect with type none"),
    ],
)
def test_impossible_blocks_are_refused_when_built(keys, sizes, words):
    with pytest.raises(ConfigError, match=words):
        rotary(keys, **sizes)
