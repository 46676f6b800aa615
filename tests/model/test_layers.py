"""Single layers against their formulas."""

import math

import pytest
import torch

from megatron.attention.eager import eager_attention
from megatron.model.attention_layer import AttentionLayer
from megatron.model.context import sequence_context
from megatron.model.mlp import MLP
from megatron.model.norms import build_norm
from megatron.positional.build import build_positional


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + torch.exp(-x))


def relu(x):
    return x.clamp(min=0)


FORMULAS = {"gelu": gelu, "geglu": gelu, "relu": relu, "reglu": relu, "silu": silu, "swiglu": silu}


@pytest.mark.parametrize("activation", FORMULAS)
def test_mlp(make_config, activation: str) -> None:
    torch.manual_seed(0)
    mlp = MLP(make_config(activation=activation).model).double()
    x = torch.randn(2, 3, 48, dtype=torch.float64)
    function, up = FORMULAS[activation], x @ mlp.up.weight.T + mlp.up.bias
    inner = function(x @ mlp.gate.weight.T + mlp.gate.bias) * up if activation.endswith("glu") else function(up)
    torch.testing.assert_close(mlp(x), inner @ mlp.down.weight.T + mlp.down.bias, atol=1e-12, rtol=0)


def test_approximate_gelu(make_config) -> None:
    mlp = MLP(make_config(gelu_approximate=True).model)
    x = torch.linspace(-4, 4, 99, dtype=torch.float64)
    torch.testing.assert_close(mlp.activation(x), gelu_tanh(x), atol=1e-12, rtol=0)
    assert (mlp.activation(x) - gelu(x)).abs().max() > 1e-5


def test_norms(make_config) -> None:
    torch.manual_seed(0)
    x = 3 + 2 * torch.randn(5, 48, dtype=torch.float64)
    weight, bias = torch.randn(2, 48, dtype=torch.float64)
    layernorm = build_norm(make_config(layernorm_epsilon=1e-3).model).double()
    layernorm.load_state_dict({"weight": weight, "bias": bias})
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight + bias
    torch.testing.assert_close(layernorm(x), expected, atol=1e-12, rtol=0)
    rmsnorm = build_norm(make_config(norm="rmsnorm", rms_norm_epsilon=1e-3).model).double()
    rmsnorm.load_state_dict({"weight": weight})
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(rmsnorm(x), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norm_statistics_are_float32_in_half_precision(make_config, norm: str, dtype: torch.dtype) -> None:
    """In fp16 the square of 300 overflows, in bf16 a sum over 4096 stalls: the result is right to one rounding only if neither happens."""
    layer = build_norm(make_config(norm=norm, hidden_size=4096).model).to(dtype)
    x = (300 * torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)) + 100).to(dtype)
    exact = build_norm(make_config(norm=norm, hidden_size=4096).model).double()(x.double())
    torch.testing.assert_close(layer(x).double(), exact, atol=0.005 * torch.finfo(dtype).eps, rtol=1.01 * torch.finfo(dtype).eps)


def test_rows_of_the_projection(make_config) -> None:
    """Query head n belongs to key/value head n // 2; each group's rows are its queries, its key, its value."""
    config = make_config(num_kv_heads=2, pos_emb="none")
    positional = build_positional(config.positional, heads=4, head_dim=12, hidden_size=48, seq_length=16, max_position_embeddings=16)
    layer = AttentionLayer(config.model, positional, eager_attention).double()
    x = torch.randn(1, 5, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = layer.query_key_value.weight.detach().unflatten(0, (8, 12))  # [q0 q1 k0 v0 q2 q3 k1 v1] of 12 each
    heads = torch.einsum("bnc,rdc->brnd", x, rows) + layer.query_key_value.bias.unflatten(0, (8, 12))[None, :, None]
    q, k, v = layer.project(x)
    torch.testing.assert_close(q, heads[:, [0, 1, 4, 5]], atol=1e-12, rtol=0)
    torch.testing.assert_close(k, heads[:, [2, 6]], atol=1e-12, rtol=0)
    torch.testing.assert_close(v, heads[:, [3, 7]], atol=1e-12, rtol=0)

    context, places = sequence_context(5, 0, x.device), torch.arange(5)
    heads = [[x[:, n, None] for x in (q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]])] for n in range(4)]  # each [b, 1, q, d]
    one_by_one = [eager_attention(*qkv, positional, places, places, context.mask)[:, 0] for qkv in heads]  # each [b, q, d]
    torch.testing.assert_close(layer(x, context=context), layer.output(torch.cat(one_by_one, dim=-1)), atol=1e-12, rtol=0)


def test_residuals(make_model, tokens) -> None:
    """The three kinds of block, written out."""
    x = torch.randn(2, 12, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    context = sequence_context(12, 0, x.device)
    block = make_model(pos_emb="alibi").layers[0]
    middle = x + block.attention(block.attention_norm(x), context=context)
    torch.testing.assert_close(block(x, context=context), middle + block.mlp(block.mlp_norm(middle)))
    block = make_model(pos_emb="alibi", gpt_j_residual=True).layers[0]
    block.mlp_norm.weight.data.fill_(2)
    expected = x + block.attention(block.attention_norm(x), context=context) + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(block(x, context=context), expected)
    block = make_model(pos_emb="alibi", gpt_j_residual=True, gpt_j_tied=True).layers[0]
    normed = block.attention_norm(x)
    torch.testing.assert_close(block(x, context=context), x + block.attention(normed, context=context) + block.mlp(normed))
    assert block.mlp_norm is None
