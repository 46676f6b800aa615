"""One transformer block: pre-norm attention and MLP around a residual stream."""

from torch import Tensor, nn
from torch.nn.functional import dropout

from megatron.attention.choose import Attention
from megatron.config.model import ModelConfig
from megatron.model.attention_layer import AttentionLayer
from megatron.model.cache import KeyValueCache
from megatron.model.context import SequenceContext
from megatron.model.mlp import MLP
from megatron.model.norms import build_norm
from megatron.positional.base import PositionalEncoding


class Block(nn.Module):
    """Sequential (GPT-2), or parallel with `gpt_j_residual`, where `gpt_j_tied` lets both halves read one norm (GPT-J)."""

    def __init__(self, config: ModelConfig, positional: PositionalEncoding, attend: Attention):
        super().__init__()
        self.parallel, self.dropout_probability = config.gpt_j_residual, config.hidden_dropout
        self.attention_norm = build_norm(config)
        self.attention = AttentionLayer(config, positional, attend)
        self.mlp_norm = None if config.gpt_j_residual and config.gpt_j_tied else build_norm(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, *, context: SequenceContext, cache: KeyValueCache | None = None) -> Tensor:
        """[b, q, hidden] -> [b, q, hidden]."""
        if self.parallel:
            normed = self.attention_norm(x)
            attended = self.attention(normed, context=context, cache=cache)
            return x + self.dropout(attended) + self.dropout(self.mlp(normed if self.mlp_norm is None else self.mlp_norm(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), context=context, cache=cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def dropout(self, x: Tensor) -> Tensor:
        """On what the block adds to the residual stream."""
        return dropout(x, self.dropout_probability, self.training)
