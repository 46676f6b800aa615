"""Block-wise attention's terms that come from positions: a bias, a weight or a hidden map, for one block of rows at a time.

A term is made from tensors inside an autograd function: it hands out its values for a block, takes their gradients, and gives the
gradients of its tensors in the end. Values are [1 or b, c, rows, columns] (1: the same for all sequences of the batch).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from megatron.attention.blocks import Block, Blocks


class Term(Protocol):
    """Used block by block: begin, values and add_gradient as often as needed, finish."""

    def begin(self, block: Block) -> None:
        """Prepare the values of a block."""

    def values(self, batch: slice) -> Tensor:
        """[1 or b, c, rows, columns] of the block, for some sequences of the batch; not to be written to."""

    def add_gradient(self, batch: slice, gradient: Tensor) -> None:
        """Take the gradient [b, c, rows, columns] of these values: zero where a causal mask hides the key."""

    def finish(self, block: Block) -> None:
        """All gradients of the block are there."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the tensors that the term was made from."""


class Toeplitz:
    """A table over distances, for consecutive positions and a causal mask: values are views of it, gradients sums along diagonals."""

    def __init__(self, table: Tensor, blocks: Blocks, behind: int = 0):
        """table [c, n] over the distances -behind ... keys - 1, where `behind` <= reach; what is further behind is zero."""
        self.reach, self.entries = blocks.reach, table.shape[1]
        self.reversed = table.new_zeros(table.shape[0], blocks.keys + blocks.rows + 2 * blocks.reach)
        self.reversed[:, self.reach : self.reach + self.entries] = table.flip(1)
        self.gradient: Tensor | None = None

    def begin(self, block: Block) -> None:
        self.block = block

    def values(self, batch: slice) -> Tensor:
        return self.rows(0, self.block.rows)[None]

    def rows(self, first: int, rows: int) -> Tensor:
        """[c, rows, columns] of rows `first` ... of the block: no copy."""
        stride, offset = self.reversed.stride(0), self.block.first + self.block.start + first
        return self.reversed.as_strided((self.reversed.shape[0], rows, self.block.columns), (stride, 1, 1), offset)

    def add_gradient(self, batch: slice, gradient: Tensor) -> None:
        self.add_rows_gradient(0, gradient)

    def add_rows_gradient(self, first: int, gradient: Tensor) -> None:
        """gradient [b, c, n, columns], contiguous in n and columns, of rows `first` ...: summed along its anti-diagonals.

        A view whose rows are one column shorter slides each row against the next. It reads the end of one row for what is before the
        start of the next; those ends are hidden from the earlier row, and zero.
        """
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.reversed)
        b, c, rows, columns = gradient.shape
        offset = self.block.first + self.block.start + first
        self.gradient[:, offset] += gradient[:, :, 0, 0].sum(0)
        slid = gradient.as_strided((b, c, rows, columns - 1), (*gradient.stride()[:2], columns - 1, 1), gradient.storage_offset() + 1)
        self.gradient[:, offset + 1 : offset + columns] += slid.sum(dim=(0, 2))

    def finish(self, block: Block) -> None:
        pass

    def gradients(self) -> tuple[Tensor, ...]:
        gradient = torch.zeros_like(self.reversed) if self.gradient is None else self.gradient
        return (gradient[:, self.reach : self.reach + self.entries].flip(1),)


class Collected:
    """What the other terms share: values of a whole block, and gradients summed over it before they are passed on."""

    def begin(self, block: Block) -> None:
        self.current = self.compute(block)  # [1 or b, c, rows, columns]
        self.collected: Tensor | None = None

    def compute(self, block: Block) -> Tensor:
        """The block's values."""
        raise NotImplementedError

    def pass_on(self, block: Block, gradient: Tensor) -> None:
        """Take the gradient of the block's values, in their shape."""
        raise NotImplementedError

    def values(self, batch: slice) -> Tensor:
        return self.current if len(self.current) == 1 else self.current[batch]

    def add_gradient(self, batch: slice, gradient: Tensor) -> None:
        if self.collected is None:
            self.collected = torch.zeros_like(self.current)
        if len(self.current) == 1:
            self.collected += gradient.sum(0, keepdim=True)
        else:
            self.collected[batch] += gradient

    def finish(self, block: Block) -> None:
        if self.collected is not None:
            self.pass_on(block, self.collected)


class Gathered(Collected):
    """A table over distances, looked up for each pair of positions: any positions, any mask."""

    def __init__(self, table: Tensor, query_positions: Tensor, key_positions: Tensor):
        """table [c, n] over the distances 0 ... n - 1; reversed query positions [q] or [b, q], key positions [k] or [b, k]."""
        self.table, self.query_positions, self.key_positions = table, query_positions, key_positions
        self.gradient = torch.zeros_like(table)

    def distances(self, block: Block) -> Tensor:
        """[1 or b, rows, columns]."""
        rows, keys = self.query_positions[..., block.queries], self.key_positions[..., block.keys]
        distances = block.pad((rows[..., :, None] - keys[..., None, :]).abs())
        return distances[(None,) * (3 - distances.dim())]

    def compute(self, block: Block) -> Tensor:
        return self.table[:, self.distances(block)].transpose(0, 1)

    def pass_on(self, block: Block, gradient: Tensor) -> None:
        self.gradient.index_add_(1, self.distances(block).flatten(), gradient.transpose(0, 1).flatten(1))

    def gradients(self) -> tuple[Tensor, ...]:
        return (self.gradient,)


class Computed(Collected):
    """A function of positions and tensors that is no table: computed anew for each block, and once more for its gradient."""

    def __init__(
        self,
        function: Callable[[tuple[Tensor, ...], Tensor, Tensor], Tensor],
        tensors: tuple[Tensor, ...],
        query_positions: Tensor,
        key_positions: Tensor,
        differentiable: bool,
    ):
        """`function(tensors, query positions [..., q], key positions [..., k])` -> [..., c, q, k]; the query positions are reversed."""
        self.function, self.query_positions, self.key_positions = function, query_positions, key_positions
        self.tensors = tuple(tensor.detach().requires_grad_() for tensor in tensors)
        self.sums = tuple(torch.zeros_like(tensor) for tensor in tensors)
        self.differentiable = differentiable

    def compute(self, block: Block) -> Tensor:
        with torch.set_grad_enabled(self.differentiable):
            values = self.function(self.tensors, self.query_positions[..., block.queries], self.key_positions[..., block.keys])
        self.inner = values
        return block.pad(values.detach()[(None,) * (4 - values.dim())])

    def pass_on(self, block: Block, gradient: Tensor) -> None:
        inner = gradient[..., block.reach : gradient.shape[-1] - block.reach].reshape(self.inner.shape)
        found = torch.autograd.grad(self.inner, self.tensors, inner, allow_unused=True)
        for total, part in zip(self.sums, found, strict=True):
            if part is not None:
                total += part

    def finish(self, block: Block) -> None:
        super().finish(block)
        self.inner = None

    def gradients(self) -> tuple[Tensor, ...]:
        return self.sums
