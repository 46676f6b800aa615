"""The first layer: token ids to vectors."""

from torch import Tensor, nn
from torch.nn.functional import dropout

from megatron.config.model import ModelConfig
from megatron.model.context import SequenceContext
from megatron.model.norms import build_norm
from megatron.positional.base import PositionalEncoding


class Embedding(nn.Module):
    """Word vectors, plus position vectors where the encoding acts here, normalised if asked for, with dropout."""

    def __init__(self, config: ModelConfig, padded_vocabulary: int, positional: PositionalEncoding | None):
        super().__init__()
        self.word_embeddings = nn.Embedding(padded_vocabulary, config.hidden_size)
        if positional is None or positional.shared:
            self.positional = positional
        else:
            self.__dict__["positional"] = positional  # the first block's own, registered there
        self.norm = build_norm(config) if config.embedding_layernorm else None
        self.dropout_probability = config.hidden_dropout

    def forward(self, tokens: Tensor, *, context: SequenceContext) -> Tensor:
        """Token ids [b, q] -> [b, q, hidden]."""
        x = self.word_embeddings(tokens)
        if self.positional is not None:
            x = x + self.positional("embed", context.embed_positions).to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        return dropout(x, self.dropout_probability, self.training)
