"""FLOPs by part, against numbers derived by hand and against torch's own counter on a tiny model."""

import contextlib
import itertools

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from megatron.config.config import Config
from megatron.config.methods import METHODS
from megatron.model.gpt import GPT
from megatron.monitor.flops import (
    dape_flops_per_pair,
    flops_per_token,
    model_flops_utilisation,
    peak_tflops,
)

L, HIDDEN, HEADS, N, VOCABULARY = 2, 32, 4, 12, 64  # layers, width, heads, tokens, (padded) vocabulary
GROUPS = ("precision", "tokenizer", "data", "parallel", "checkpoint", "evaluation", "logging", "launch", "generation")


def config_of(pos_emb="none", *, checkpoint_activations=False, positional=None, **model):
    sizes = {"num_layers": L, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": N}
    return Config.model_validate(
        {
            "model": {**sizes, "make_vocab_size_divisible_by": VOCABULARY, "attention_backend": "eager", **model},
            "positional": {"pos_emb": pos_emb, **(positional or {})},
            "training": {"train_iters": 1, "checkpoint_activations": checkpoint_activations},
            "optimizer": {"optimizer": {"params": {"lr": 0.1}}},
            **{group: {} for group in GROUPS},
        }
    )


def counted(config, batch=2, backward=False):
    """FLOPs per token by torch's counter, which sees every matrix product as it runs."""
    model = GPT(config, VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(VOCABULARY, (batch, N))
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False) if backward else contextlib.nullcontext():
        logits = model(tokens)
        if backward:
            logits.sum().backward()
    return counter.get_total_flops() / tokens.numel()


def test_gpt_125m_by_hand():
    """12 layers, 768 wide, 12 heads, length 1024, vocabulary 50,304: per layer and token 4 projections of 768 x 768, scores and values over
    1024 keys of 768 numbers, 2 matrices of 768 x 3072."""
    flops = flops_per_token(config_of(num_layers=12, hidden_size=768, num_attention_heads=12), 50304, 1024)
    assert flops.projections == 56_623_104  # 12 * 4 * 2 * 768 * 768
    assert flops.attention == 37_748_736  # 12 * 2 * 2 * 1024 * 768
    assert flops.mlp == 113_246_208  # 12 * 2 * 2 * 768 * 3072
    assert flops.vocabulary == 77_266_944  # 2 * 768 * 50304
    assert flops.positional == flops.dape == 0
    assert flops.forward == 284_884_992 and flops.total == flops.hardware == 854_654_976
    # PaLM, appendix B: 6 N + 12 L H Q T with N the 84,934,656 parameters of the blocks' matrices and the 38,633,472 of the output's
    assert flops.total == 6 * (84_934_656 + 38_633_472) + 12 * 12 * 12 * 64 * 1024


def test_dape_by_hand():
    """12 heads, D = 32: a pair costs 2 * 24 * 32 + 2 * 32 * 12 = 2304; a token sees (1023 + 1) / 2 = 512 keys on average."""
    sizes = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}

    def dape(pos_emb, **keys):
        return flops_per_token(config_of(pos_emb, positional=keys, **sizes), 50304, 1023).dape

    assert dape("dape_kerple_log") == 12 * 512 * 2304
    assert dape("dape_none") == 12 * 512 * (2 * 12 * 32 + 2 * 32 * 12)
    assert dape("dape_kerple", dape_kernel_size=3) == 12 * 512 * 3 * 2304
    assert dape("dape_kerple", dape_form="s+b+f(b)") == 12 * 512 * 1536
    assert dape("kerple_log") == 0


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_kv_heads": 2},
        {"activation": "swiglu", "mlp_multiple_of": 8},
        {"activation": "geglu", "intermediate_size": 40, "gpt_j_residual": True, "no_weight_tying": True, "num_layers": 3},
    ],
)
def test_agrees_with_torchs_counter(keys):
    config = config_of("alibi", **keys)
    flops = flops_per_token(config, VOCABULARY, N)
    assert counted(config) == flops.forward
    assert counted(config, backward=True) == flops.total


def test_recomputed_activations_are_hardware_flops():
    config = config_of("alibi", checkpoint_activations=True)
    flops = flops_per_token(config, VOCABULARY, N)
    assert counted(config, backward=True) == flops.hardware
    assert flops.hardware - flops.total == flops.forward - flops.vocabulary > 0


@pytest.mark.parametrize(
    ("pos_emb", "form"),
    [
        *itertools.product(("dape_kerple_log", "dape_alibi"), ("s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)")),
        *itertools.product(("dape_none", "dape_rotary"), ("s+b+f(s,b)", "s+f(s,b)")),
    ],
)
def test_dape_agrees_with_torchs_counter(pos_emb, form):
    """`eager` runs the map over all N keys of a query, of which (N + 1) / 2 are counted."""
    config = config_of(pos_emb, positional={"dape_hidden_size": 6, "dape_form": form})
    flops = flops_per_token(config, VOCABULARY, N)
    assert counted(config) == flops.forward - flops.dape + flops.dape * N / ((N + 1) / 2)


def test_wider_kernels_agree_with_torchs_counter():
    """A kernel of 3 adds one column to the right of the hidden map of each row: eager's padding, not the model's work."""
    config = config_of("dape_kerple_log", positional={"dape_hidden_size": 6, "dape_kernel_size": 3})
    flops = flops_per_token(config, VOCABULARY, N)
    padding = L * (2 * 2 * HEADS * 6 * 3)
    assert counted(config) == flops.forward - flops.dape + L * N * dape_flops_per_pair(HEADS, 6, 3, 2 * HEADS) + padding


def test_cope_and_transformer_xl_agree_with_torchs_counter():
    cope = config_of("cope", positional={"cope_max_position": 5})
    assert flops_per_token(cope, VOCABULARY, N).positional == L * 2 * 5 * HIDDEN
    assert counted(cope) == flops_per_token(cope, VOCABULARY, N).forward
    xl = config_of("transformer_xl")
    assert flops_per_token(xl, VOCABULARY, N).positional == L * 2 * N * HIDDEN
    shared_by_the_batch = L * 2 * N * HIDDEN * HIDDEN  # W_r s(t) of N distances
    assert counted(xl, batch=4) * 4 * N == flops_per_token(xl, VOCABULARY, N).forward * 4 * N + shared_by_the_batch


@pytest.mark.parametrize("name", METHODS)
def test_which_encodings_have_a_bias_is_known(name):
    """The list of methods agrees with what the encodings themselves say."""
    assert METHODS[name].adds_bias == ("bias" in METHODS[name].load().acts_on)


def test_mfu():
    assert model_flops_utilisation(78.0, 312.0) == 0.25
    assert model_flops_utilisation(78.0, None) is None


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "fp16", 756.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA A40", "bf16", 149.7),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L40", "bf16", 181),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("cpu", "fp32", None),
    ],
)
def test_peaks_of_known_devices(name, dtype, peak):
    assert peak_tflops(name, dtype) == peak
