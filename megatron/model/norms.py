"""Normalisation layers. Statistics are float32 in half precision: torch's own kernels see to that (tests/model/test_layers.py checks)."""

from torch import nn

from megatron.config.model import ModelConfig

Norm = nn.LayerNorm | nn.RMSNorm


def build_norm(config: ModelConfig) -> Norm:
    """The norm that the configuration names, over the last dimension: [..., hidden] -> [..., hidden]."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_epsilon)
    return nn.LayerNorm(config.hidden_size, eps=config.layernorm_epsilon, bias=config.use_bias_in_norms)
