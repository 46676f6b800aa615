"""Which query may look at which key: causality, sliding window, documents and padding, in one value."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionMask:
    """Places are indices into the sequence (0-based), apart from the positions that an encoding sees (which may restart in each document).

    A pair in which key place == query place is always allowed, so that no row is ever empty.
    """

    query_places: Tensor  # [q]
    key_places: Tensor  # [k]
    causal: bool = True
    window: int | None = None  # keys at a distance of `window` or more are hidden
    query_documents: Tensor | None = None  # [b, q] document numbers; a negative number is padding
    key_documents: Tensor | None = None  # [b, k]

    @property
    def only_causal(self) -> bool:
        """No window, no documents, and the usual triangle (queries are the last places): what fused kernels can do by a flag."""
        return self.causal and self.window is None and self.query_documents is None

    def allowed(self) -> Tensor:
        """bool, [q, k], or [b, 1, q, k] with documents."""
        offset = self.query_places[:, None] - self.key_places[None, :]  # [q, k]
        allowed = torch.ones_like(offset, dtype=torch.bool)
        if self.causal:
            allowed = offset >= 0
        if self.window is not None:
            allowed = allowed & (offset.abs() < self.window)
        if self.query_documents is not None:
            same = self.query_documents[:, :, None] == self.key_documents[:, None, :]  # [b, q, k]
            same &= (self.key_documents >= 0)[:, None, :]
            allowed = (allowed & same | (offset == 0))[:, None]
        return allowed

    def part(self, queries: slice, keys: slice) -> "AttentionMask":
        """The mask of some of the queries against some of the keys."""
        documents = self.query_documents is not None
        return replace(
            self,
            query_places=self.query_places[queries],
            key_places=self.key_places[keys],
            query_documents=self.query_documents[:, queries] if documents else None,
            key_documents=self.key_documents[:, keys] if documents else None,
        )

    def document_starts(self) -> Tensor | None:
        """int64 [b, q]: the column of the first key of each query's document; None without documents (then column 0 for all)."""
        if self.query_documents is None:
            return None
        same = self.query_documents[:, :, None] == self.key_documents[:, None, :]  # [b, q, k]
        return same.byte().argmax(dim=-1)
