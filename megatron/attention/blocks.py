"""How block-wise attention cuts its work: blocks of query rows, from the last row to the first, against the keys that they may see.

Rows are taken in reverse order. Then the entry for (row r, column x) of anything that depends on the distance i - j alone lies at offset
r + x of a reversed table, so that a strided view of the table, copying nothing, serves every block (distances.py).

A block is `columns` wide: the keys that it sees, with `reach` columns on both sides that stand for keys that are not there. A 1xk kernel
reads them as zeros, and its shifts along the flattened [rows * columns] never carry anything from one row to another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from megatron.attention.mask import AttentionMask

ROWS = 64  # a block's scores and hidden map stay in the cache of a CPU core
FEWEST_ROWS = 8
POSITIONS = 64 * 8192  # most (row, column) pairs of a block: longer sequences have fewer rows a block


@dataclass(frozen=True)
class Block:
    """Rows first ... first + rows - 1 of the reversed queries, keys start ... stop - 1."""

    first: int
    rows: int
    start: int
    stop: int
    reach: int

    @property
    def columns(self) -> int:
        """Width with the empty columns on both sides."""
        return self.stop - self.start + 2 * self.reach

    @property
    def queries(self) -> slice:
        """Of the reversed queries."""
        return slice(self.first, self.first + self.rows)

    @property
    def keys(self) -> slice:
        """Of the keys."""
        return slice(self.start, self.stop)

    @property
    def padded_keys(self) -> slice:
        """Of the keys with `reach` empty ones on both sides."""
        return slice(self.start, self.stop + 2 * self.reach)

    def pad(self, values: Tensor, value: float | bool = 0) -> Tensor:
        """[..., stop - start] -> [..., columns]."""
        return pad(values, (self.reach, self.reach), value=value) if self.reach else values


@dataclass(frozen=True)
class Blocks:
    """The blocks of one attention call. The queries are the last of the keys' places; `mask` says who may see whom."""

    mask: AttentionMask
    queries: int
    keys: int
    reach: int  # (k - 1) / 2 of a DAPE kernel

    @property
    def rows(self) -> int:
        """Rows of all blocks but perhaps the last."""
        return min(self.queries, ROWS, max(FEWEST_ROWS, POSITIONS // self.keys))

    @property
    def only_causal(self) -> bool:
        """The usual triangle alone: its future part is the same for all blocks."""
        return self.mask.only_causal

    def __iter__(self) -> Iterator[Block]:
        """The widest block first, so that workspaces are touched at full size once."""
        for first in range(0, self.queries, self.rows):
            rows = min(self.rows, self.queries - first)
            last_place, first_place = self.keys - 1 - first, self.keys - first - rows
            stop = last_place + 1 if self.mask.causal else self.keys
            start = max(0, first_place - self.mask.window + 1 - self.reach) if self.mask.causal and self.mask.window else 0
            yield Block(first, rows, start, stop, self.reach)

    def in_order(self, block: Block) -> slice:
        """The block's queries in their own order."""
        return slice(self.queries - block.first - block.rows, self.queries - block.first)

    def masked(self, block: Block) -> Tensor:
        """bool [1 or b, 1, rows, columns]: pairs that may not meet, and the empty columns. Not for `only_causal`."""
        allowed = self.mask.part(self.in_order(block), block.keys).allowed()  # [rows, keys] or [b, 1, rows, keys]
        return block.pad(~allowed.flip(-2), True)[(None,) * (4 - allowed.dim())]

    def before_document(self, block: Block) -> Tensor | None:
        """bool [b, 1, rows, columns]: columns before the first key of the row's document; None without documents."""
        if self.mask.query_documents is None:
            return None
        starts = self.mask.part(self.in_order(block), slice(None)).document_starts()  # [b, rows]
        columns = torch.arange(block.columns, device=starts.device) + (block.start - block.reach)
        return (columns < starts.flip(-1)[..., None])[:, None]


def future(rows: int, reach: int, device: torch.device) -> Tensor:
    """bool [rows, rows + reach]: what the last rows + reach columns of a causal block hide from its reversed rows."""
    return torch.arange(rows + reach, device=device)[None, :] + torch.arange(rows, device=device)[:, None] >= rows


def fill_masked(values: Tensor, value: float, block: Block, masked: Tensor | None, rows: slice = slice(None)) -> None:
    """Set masked pairs and empty columns of values [b, c, n, columns], rows `rows` of the block; masked None: the triangle alone."""
    if masked is not None:
        values.masked_fill_(masked[..., rows, :], value)
        return
    values[..., block.columns - block.rows - block.reach :].masked_fill_(future(block.rows, block.reach, values.device)[rows], value)
    if block.reach:
        values[..., : block.reach] = value
