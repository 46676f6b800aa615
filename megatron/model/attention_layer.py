"""The attention half of a block: projections, the encoding's rotation, the chosen backend."""

from torch import Tensor, nn

from megatron.attention.choose import Attention
from megatron.config.model import ModelConfig
from megatron.model.cache import KeyValueCache
from megatron.model.context import SequenceContext
from megatron.positional.base import PositionalEncoding


class AttentionLayer(nn.Module):
    """Causal self-attention with grouped key/value heads: query head n uses key/value head n // (h / g)."""

    def __init__(self, config: ModelConfig, positional: PositionalEncoding, attend: Attention):
        super().__init__()
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        width = (config.num_attention_heads + 2 * config.kv_heads) * config.head_dim
        # Rows: for each of the g key/value heads its h/g query heads, its key, its value. A share of the heads is a slice of the rows.
        self.query_key_value = nn.Linear(config.hidden_size, width, bias=config.use_bias_in_attn_linear)
        self.output = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=config.use_bias_in_attn_linear)
        self.dropout_probability = config.attention_dropout
        self.attend = attend
        if positional.shared:
            self.__dict__["positional"] = positional  # registered once, by the model: ZeRO-3 would hook it for every place
        else:
            self.positional = positional

    def forward(self, x: Tensor, *, context: SequenceContext, cache: KeyValueCache | None = None) -> Tensor:
        """[b, q, hidden] -> [b, q, hidden]."""
        q, k, v = self.project(x)
        if cache is not None and self.positional.rotates_by_length:
            k, v = cache.append(k, v)
        if "rotate" in self.positional.acts_on:
            key_positions = context.key_positions if self.positional.rotates_by_length else context.query_positions
            q, k = self.positional("rotate", q, k, context.query_positions, key_positions)
        if cache is not None and not self.positional.rotates_by_length:  # rotated keys are kept: a key's position never changes
            k, v = cache.append(k, v)
        dropout = self.dropout_probability if self.training else 0.0
        y = self.attend(q, k, v, self.positional, context.query_positions, context.key_positions, context.mask, dropout)  # [b, h, q, d]
        return self.output(y.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[b, q, hidden] -> queries [b, h, q, d], keys and values [b, g, q, d]."""
        qkv = self.query_key_value(x).unflatten(-1, (self.kv_heads, -1, self.head_dim))  # [b, q, g, h/g + 2, d]
        q, k, v = qkv.split([qkv.shape[-2] - 2, 1, 1], dim=-2)
        return tuple(heads.flatten(2, 3).transpose(1, 2) for heads in (q, k, v))
