"""What every layer of one forward pass needs besides the hidden state: where the tokens are and who may see whom."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megatron.attention.mask import AttentionMask
from megatron.positional.base import PositionalEncoding


@dataclass(frozen=True)
class SequenceContext:
    """Made once per forward pass. With a key/value cache the queries are the last q of k tokens, else q = k."""

    query_positions: Tensor  # [q] or [b, q]
    key_positions: Tensor  # [k] or [b, k]
    mask: AttentionMask
    embed_positions: Tensor  # [q] or [b, q]: what is added to the word embeddings goes by these

    def located(self, encoding: PositionalEncoding, tokens: Tensor) -> "SequenceContext":
        """The same with the positions that `encoding` reads off the text: token ids [b, k], cached ones included."""
        embed, attend = encoding.locate(tokens, self.key_positions)  # [b, k]
        cached = tokens.shape[1] - self.query_positions.shape[-1]
        return replace(self, query_positions=attend[:, cached:], key_positions=attend, embed_positions=embed[:, cached:])


def sequence_context(
    queries: int,
    cached: int,
    device: torch.device,
    position_ids: Tensor | None = None,
    document_ids: Tensor | None = None,
    window: int | None = None,
) -> SequenceContext:
    """The context of `queries` new tokens after `cached` earlier ones.

    With `window`, a token sees itself and the `window` - 1 tokens before it.
    `position_ids` ([k] or [b, k], default 0..k-1) and `document_ids` ([b, k], negative: padding) describe all k = cached + queries tokens.
    Raises ValueError where their length is not k.
    """
    places = torch.arange(cached + queries, device=device)  # [k]
    for name, ids in (("position_ids", position_ids), ("document_ids", document_ids)):
        if ids is not None and ids.shape[-1] != len(places):
            raise ValueError(f"{name} describes {ids.shape[-1]} tokens, but the sequence has {cached} cached and {queries} new ones")
    positions = places if position_ids is None else position_ids
    query_documents = None if document_ids is None else document_ids[:, cached:]
    mask = AttentionMask(places[cached:], places, window=window, query_documents=query_documents, key_documents=document_ids)
    return SequenceContext(positions[..., cached:], positions, mask, positions[..., cached:])
