"""Two levels: where a token is in its segment of the text, and which segment that is (BiPE; He et al. 2024, section 3).

A segment ends with a token that separates (a full stop, a line break) and holds it. The place inside it picks a row of a learned table that
is added to the word embeddings; the number of the segment is the position that a relative encoding (rotary, ALiBi) works with.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig
from megatron.positional.alibi import Alibi
from megatron.positional.base import PositionalEncoding
from megatron.positional.initialise import fill_normal
from megatron.positional.rotary import Rotary


class Bipe(PositionalEncoding):
    """The level of the tokens; a subclass adds the encoding of the segments. Any length: segments longer than the table are cut."""

    shares_parameters = True

    def __init__(self, config: PositionalConfig, *, hidden_size: int, **sizes: int):
        super().__init__(config, hidden_size=hidden_size, **sizes)
        if not config.bipe_segment_tokens:
            raise ConfigError(f"`pos_emb: {config.pos_emb}` needs `bipe_segment_tokens`, the ids of the tokens that end a segment.")
        self.register_buffer("segment_tokens", torch.tensor(config.bipe_segment_tokens), persistent=False)
        self.segment_length = config.bipe_segment_length
        self.table = nn.Parameter(torch.zeros(config.bipe_segment_length, hidden_size))

    def initialise_parameters(self, generator: torch.Generator, embedding_std: float) -> None:
        fill_normal(self.table, embedding_std, generator)

    def locate(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [b, k] at positions [k] or [b, k] -> places inside the segments [b, k], numbers of the segments [b, k]."""
        return segments(torch.isin(tokens, self.segment_tokens), positions == 0, self.segment_length)

    def embed(self, positions: Tensor) -> Tensor:
        """Places inside segments, [q] or [b, q] -> [..., q, hidden]."""
        return embedding(positions.clamp(min=0), self.table)


class BipeRotary(Bipe, Rotary):
    """Queries and keys rotate by the number of their segment; lengths of `rotary_scaling` count segments, too."""

    acts_on = Rotary.acts_on | {"locate", "embed"}


class BipeAlibi(Bipe, Alibi):
    """A bias that falls linearly with the number of segments in between."""

    acts_on = Alibi.acts_on | {"locate", "embed"}


def segments(ends: Tensor, document_begins: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Where segments end, bool [b, k], and documents begin, bool [k] or [b, k] -> (place in its segment, its number), int64 [b, k].

    Both count from 0 in each document. A segment of more than `longest` tokens is cut into several. Nothing depends on later tokens.
    """
    index = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)  # [b, k]
    document_begins = (document_begins | (index == 0)).expand_as(ends)
    begins = document_begins.clone()
    begins[:, 1:] |= ends[:, :-1]
    place = index - torch.where(begins, index, 0).cummax(dim=1).values  # in the segment before cutting
    number = (place % longest == 0).cumsum(dim=1)  # over all documents
    return place % longest, number - torch.where(document_begins, number, 0).cummax(dim=1).values
