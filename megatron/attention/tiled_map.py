"""DAPE's map over the heads inside a block: forwards in place, and backwards from a hidden map computed a second time.

The hidden map is D wide at every (row, column) of all heads' scores. It exists for a tile of rows at a time, small enough for the cache of
a CPU core, and is never kept. Both layers are products from the left, [D, h] x [h, positions], one for each shift of the kernel.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu_

from megatron.attention.blocks import Block, Blocks, fill_masked
from megatron.attention.distances import Collected, Term, Toeplitz
from megatron.positional.dape import SLOPE

TILE = 16384  # most (row, column) pairs of a tile


class HiddenTable:
    """What the hidden layer takes from the bias and from b1, where both depend on the distance alone.

    Columns at the start of the sequence differ: there, a kernel's shifts reach columns without a bias.
    """

    def __init__(self, table: Tensor, edge: Tensor | None, blocks: Blocks):
        """table [D, n] over the distances -reach ... keys - 1; edge [reach, D, q]: columns 0 ... reach - 1, reversed queries."""
        self.table, self.edge, self.reach = Toeplitz(table, blocks, behind=blocks.reach), edge, blocks.reach
        self.edge_gradient = None if edge is None else torch.zeros_like(edge)

    def begin(self, block: Block) -> None:
        """Prepare a block."""
        self.block = block
        self.table.begin(block)

    def fill(self, hidden: Tensor, batch: slice, first: int) -> None:
        """Write to hidden [b, D, n, columns] of the block's rows `first` ..."""
        rows = hidden.shape[2]
        hidden.copy_(self.table.rows(first, rows).expand_as(hidden))
        if self.edge is not None and self.block.start == 0:
            queries = slice(self.block.first + first, self.block.first + first + rows)
            hidden[..., self.reach : 2 * self.reach] = self.edge[:, :, queries].permute(1, 2, 0)

    def add_gradient(self, batch: slice, first: int, gradient: Tensor) -> None:
        """gradient [b, D, n, columns], zero in the empty columns; spoilt."""
        if self.edge is not None and self.block.start == 0:
            queries = slice(self.block.first + first, self.block.first + first + gradient.shape[2])
            edge = gradient[..., self.reach : 2 * self.reach]
            self.edge_gradient[:, :, queries] += edge.sum(0).permute(2, 0, 1)
            edge.zero_()
        self.table.add_rows_gradient(first, gradient)

    def finish(self, block: Block) -> None:
        """Nothing: gradients are complete as they come."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the table and, with a kernel, of the edge."""
        return (*self.table.gradients(), *(() if self.edge is None else (self.edge_gradient,)))


class HiddenConstant:
    """What the hidden layer takes from b1 alone: there is no bias."""

    def __init__(self, hidden_bias: Tensor):
        """hidden_bias b1 [D]."""
        self.hidden_bias, self.gradient = hidden_bias, torch.zeros_like(hidden_bias)

    def begin(self, block: Block) -> None:
        """Nothing to prepare."""

    def fill(self, hidden: Tensor, batch: slice, first: int) -> None:
        """Write to hidden [b, D, n, columns]."""
        hidden.copy_(self.hidden_bias[:, None, None].expand_as(hidden))

    def add_gradient(self, batch: slice, first: int, gradient: Tensor) -> None:
        """gradient [b, D, n, columns]."""
        self.gradient += gradient.sum(dim=(0, 2, 3))

    def finish(self, block: Block) -> None:
        """Nothing: gradients are complete as they come."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of b1."""
        return (self.gradient,)


class HiddenOfBias(Collected):
    """What the hidden layer takes from b1 and from any bias and mask: computed for a whole block, for each sequence if they differ."""

    def __init__(self, hidden_bias: Tensor, weight: Tensor, bias: Term, blocks: Blocks):
        """hidden_bias b1 [D], weight [k, D, h] of the biases; `bias` begins before and finishes after this one."""
        self.hidden_bias, self.weight, self.bias, self.blocks = hidden_bias, weight, bias, blocks
        self.bias_gradient, self.weight_gradient = torch.zeros_like(hidden_bias), torch.zeros_like(weight)

    def compute(self, block: Block) -> Tensor:
        self.features = self.bias.values(slice(None))  # [1 or b, h, rows, columns]
        self.masked = None if self.blocks.only_causal else self.blocks.masked(block)
        if block.reach:
            shape = torch.broadcast_shapes(self.features.shape, (1, 1, 1, 1) if self.masked is None else self.masked.shape)
            self.features = self.features.expand(shape).clone()
            fill_masked(self.features, 0.0, block, self.masked)
        hidden = self.hidden_bias[:, None].expand(len(self.features), -1, block.rows * block.columns).clone()
        add_shifted(hidden, self.weight, self.features.flatten(2))
        return hidden.unflatten(-1, (block.rows, block.columns))

    def fill(self, hidden: Tensor, batch: slice, first: int) -> None:
        """Write to hidden [b, D, n, columns]."""
        hidden.copy_(self.values(batch)[:, :, first : first + hidden.shape[2]].expand_as(hidden))

    def add_gradient(self, batch: slice, first: int, gradient: Tensor) -> None:
        """gradient [b, D, n, columns]."""
        if self.collected is None:
            self.collected = torch.zeros_like(self.current)
        rows = slice(first, first + gradient.shape[2])
        if len(self.current) == 1:
            self.collected[:, :, rows] += gradient.sum(0, keepdim=True)
        else:
            self.collected[batch, :, rows] += gradient

    def pass_on(self, block: Block, gradient: Tensor) -> None:
        gradient = gradient.flatten(2)  # [1 or b, D, positions]
        features = self.features.flatten(2)  # [1 or b, h, positions]
        self.bias_gradient += gradient.sum(dim=(0, 2))
        add_outer(self.weight_gradient, gradient, features)
        change = torch.zeros_like(features)
        add_shifted_back(change, self.weight, gradient)
        change = change.unflatten(-1, (block.rows, block.columns))
        if block.reach:
            fill_masked(change, 0.0, block, self.masked)
        self.bias.add_gradient(slice(None), change)

    def gradients(self) -> tuple[Tensor, ...]:
        """Of b1 and of the weight."""
        return self.bias_gradient, self.weight_gradient


class TiledMap:
    """A += W2 leaky(W1 A + hidden), in place, for the scores of a block; A is what the map reads and what it adds to."""

    def __init__(
        self,
        weight: Tensor | None,
        output_weight: Tensor,
        output_bias: Tensor,
        hidden: HiddenTable | HiddenConstant | HiddenOfBias,
        blocks: Blocks,
    ):
        """weight [k, D, h] of the scores (None: the map reads the bias alone), output_weight [k, h, D], output_bias [h].

        The output's bias shifts all scores of a row alike: it changes nothing, and its gradient is exactly zero.
        """
        self.output_bias_gradient = torch.zeros_like(output_bias)
        self.weight, self.output_weight, self.hidden, self.blocks = weight, output_weight, hidden, blocks
        self.weight_gradient = None if weight is None else torch.zeros_like(weight)
        self.output_gradient = torch.zeros_like(output_weight)
        self.rooms: dict[int, Tensor] = {}

    def begin(self, block: Block) -> None:
        """Prepare a block."""
        self.block = block
        self.before_document = self.blocks.before_document(block) if block.reach else None
        self.hidden.begin(block)

    def tiles(self) -> list[slice]:
        """Rows of the block, a tile each."""
        size = max(1, TILE // self.block.columns)
        return [slice(first, min(first + size, self.block.rows)) for first in range(0, self.block.rows, size)]

    def room(self, number: int, like: Tensor, rows: slice) -> Tensor:
        """Workspace [b, D, n, columns], the same memory for each tile; like: scores [b, h, rows, columns]."""
        shape = (len(like), self.output_weight.shape[2], rows.stop - rows.start, self.block.columns)
        size = math.prod(shape)
        if number not in self.rooms or len(self.rooms[number]) < size:
            self.rooms[number] = like.new_empty(size)
        return self.rooms[number][:size].view(shape)

    def forward(self, scores: Tensor, batch: slice) -> None:
        """Map scores [b, h, rows, columns] in place; with a kernel, they are zero where masked."""
        for rows in self.tiles():
            tile = scores[:, :, rows].flatten(2)  # [b, h, positions], a view
            add_shifted(tile, self.output_weight, self.hidden_map(self.room(0, scores, rows), tile, batch, rows))

    def hidden_map(self, room: Tensor, tile: Tensor, batch: slice, rows: slice) -> Tensor:
        """leaky(W1 A + hidden) of a tile [b, h, positions]: [b, D, positions], in `room`."""
        self.hidden.fill(room, batch, rows.start)
        hidden = room.flatten(2)
        if self.weight is not None:
            add_shifted(hidden, self.weight, tile)
        leaky_relu_(hidden, SLOPE)
        self.clear(room, batch, rows)
        return hidden

    def clear(self, hidden: Tensor, batch: slice, rows: slice) -> None:
        """hidden [b, D, n, columns] is zero before the start of the sequence and of the row's document."""
        if self.block.reach:
            hidden[..., : self.block.reach] = 0
        if self.before_document is not None:
            hidden.masked_fill_(self.before_document[batch, :, rows], 0)

    def backward(self, scores: Tensor, mapped: Tensor, gradient: Tensor, batch: slice, between: Callable[[slice], None]) -> None:
        """Backwards through the map, a tile at a time: all [b, h, rows, columns].

        `scores` are those before the map; `mapped` gets those after it. Then `between(rows)` is called, which turns `gradient` of these
        rows into the gradient of the mapped scores; that becomes, in place, the gradient of the scores.
        """
        for rows in self.tiles():
            tile, out, change = (each[:, :, rows].flatten(2) for each in (scores, mapped, gradient))  # [b, h, positions], views
            hidden = self.hidden_map(self.room(0, scores, rows), tile, batch, rows)
            add_shifted(out, self.output_weight, hidden, onto=tile)
            between(rows)
            add_outer(self.output_gradient, change, hidden)
            room = self.room(1, scores, rows)
            back = room.flatten(2)
            set_shifted_back(back, self.output_weight, change)
            torch.ops.aten.leaky_relu_backward.grad_input(back, hidden, SLOPE, True, grad_input=back)
            self.clear(room, batch, rows)
            if self.weight is not None:
                add_outer(self.weight_gradient, back, tile)
                add_shifted_back(change, self.weight, back)
            self.hidden.add_gradient(batch, rows.start, room)

    def finish(self, block: Block) -> None:
        """All gradients of the block are there."""
        self.hidden.finish(block)

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the weight (where there is one), the output's weight and bias, and what the hidden layer was made from."""
        weight = () if self.weight is None else (self.weight_gradient,)
        return (*weight, self.output_gradient, self.output_bias_gradient, *self.hidden.gradients())


def shifts(kernel: int, positions: int) -> list[tuple[int, slice, slice]]:
    """(tap, output positions, input positions) of a 1xk cross-correlation along a flattened row of positions, the middle tap first."""
    reach = kernel // 2
    taps = sorted(range(kernel), key=lambda tap: tap != reach)
    return [
        (tap, slice(max(0, reach - tap), positions - max(0, tap - reach)), slice(max(0, tap - reach), positions - max(0, reach - tap)))
        for tap in taps
    ]


def add_shifted(output: Tensor, weight: Tensor, features: Tensor, onto: Tensor | None = None) -> None:
    """output [b, o, n] = (onto, or output itself) + the cross-correlation of features [b, c, n] with weight [k, o, c]."""
    for tap, to, of in shifts(len(weight), features.shape[2]):
        out = output[:, :, to]
        start, onto = out if onto is None else onto, None  # the middle tap, which comes first, covers all positions
        _multiply(out, start, weight[tap], features[:, :, of])


def add_shifted_back(features: Tensor, weight: Tensor, output: Tensor) -> None:
    """The gradient of `add_shifted`: features [b, c, n] += of output [b, o, n]."""
    for tap, to, of in shifts(len(weight), output.shape[2]):
        part = features[:, :, of]
        _multiply(part, part, weight[tap].T, output[:, :, to])


def set_shifted_back(features: Tensor, weight: Tensor, output: Tensor) -> None:
    """`add_shifted_back` onto zeros."""
    (middle, _, _), *others = shifts(len(weight), output.shape[2])
    _multiply(features, features, weight[middle].T, output, keep=0)
    for tap, to, of in others:
        part = features[:, :, of]
        _multiply(part, part, weight[tap].T, output[:, :, to])


def add_outer(weight: Tensor, output: Tensor, features: Tensor) -> None:
    """The gradient of `add_shifted`: weight [k, o, c] += of output [b, o, n] and features [1 or b, c, n]."""
    for tap, to, of in shifts(len(weight), output.shape[2]):
        for one, other in zip(output, features, strict=True):
            weight[tap].addmm_(one[:, to], other[:, of].T)


def _multiply(out: Tensor, start: Tensor, weight: Tensor, features: Tensor, keep: float = 1) -> None:
    """out [b, o, n] = keep * start [b, o, n] + weight [o, c] @ features [b, c, n]."""
    if len(out) == 1:  # torch's product of two matrices costs less than that of a batch of one
        torch.addmm(start[0], weight, features[0], beta=keep, out=out[0])
    else:
        torch.baddbmm(start, weight.expand(len(out), -1, -1), features, beta=keep, out=out)
