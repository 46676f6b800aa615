"""What an encoding says about the scores, as terms that block-wise attention can compute block by block."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad

from megatron.attention.blocks import Block, Blocks
from megatron.attention.distances import Computed, Gathered, Term, Toeplitz
from megatron.attention.tiled_map import HiddenConstant, HiddenOfBias, HiddenTable, TiledMap
from megatron.positional.base import PositionalEncoding
from megatron.positional.dape import SLOPE

Maker = Callable[[tuple[Tensor, ...]], Any]  # from its share of the tensors to a term


@dataclass
class Terms:
    """The terms of one call; what an encoding does not have is None. `bias` may serve the map alone, without being added."""

    bias: Term | None
    added_bias: Term | None
    weight: Term | None
    hooked: "Hooked | None"
    map: TiledMap | None

    def _in_order(self) -> list[Any]:
        return [term for term in (self.bias, self.weight, self.hooked, self.map) if term is not None]

    def begin(self, block: Block) -> None:
        """Prepare the block's values, the bias before the map that reads it."""
        for term in self._in_order():
            term.begin(block)

    def finish(self, block: Block) -> None:
        """All gradients of the block are there, those of the map before those of the bias that it read."""
        for term in reversed(self._in_order()):
            term.finish(block)

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the tensors that the terms were made from, in their order."""
        return tuple(gradient for term in self._in_order() for gradient in term.gradients())


class Hooked:
    """Scores that an encoding computes itself (Transformer-XL) or adjusts by their content (CoPE): autograd inside the block."""

    def __init__(
        self,
        positional: PositionalEncoding,
        tensors: tuple[Tensor, ...],
        query_positions: Tensor,
        key_positions: Tensor,
        blocks: Blocks,
        differentiable: bool,
    ):
        """`positional` is asked with `tensors` in place of its parameters; the query positions are reversed."""
        self.query_positions, self.key_positions, self.blocks, self.differentiable = query_positions, key_positions, blocks, differentiable
        self.tensors = tuple(tensor.detach().requires_grad_(differentiable) for tensor in tensors)
        self.positional = positional.with_tensors(self.tensors)
        self.sums = tuple(torch.zeros_like(tensor) for tensor in tensors)

    def begin(self, block: Block) -> None:
        """Prepare a block."""
        self.rows, self.keys = self.query_positions[..., block.queries], self.key_positions[..., block.keys]
        self.allowed = self.blocks.mask.part(self.blocks.in_order(block), block.keys).allowed().flip(-2)  # [q, k] or [b, 1, q, k]

    def forward(self, q: Tensor, k: Tensor, batch: slice) -> Tensor:
        """q [b, h, rows, d], k [b, h, k, d] -> scores [b, h, rows, k]."""
        rows, keys = (each if each.dim() == 1 else each[batch] for each in (self.rows, self.keys))
        allowed = self.allowed if self.allowed.dim() == 2 else self.allowed[batch]
        with torch.set_grad_enabled(self.differentiable):
            self.inputs = tuple(each.detach().requires_grad_(self.differentiable) for each in (q, k))
            q, k = self.inputs
            if "scores" in self.positional.acts_on:
                self.inner = self.positional.scores(q, k, rows, keys)
            else:
                self.inner = (q / math.sqrt(q.shape[-1])) @ k.mT
            if "adjust" in self.positional.acts_on:
                self.inner = self.positional.adjust(self.inner, q, allowed)
        return self.inner.detach()

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the last scores -> those of q and k."""
        q, k, *found = torch.autograd.grad(self.inner, (*self.inputs, *self.tensors), gradient, allow_unused=True)
        for total, part in zip(self.sums, found, strict=True):
            if part is not None:
                total += part
        self.inner = None
        return q, k

    def finish(self, block: Block) -> None:
        """Nothing: gradients are complete as they come."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Of the encoding's tensors."""
        return self.sums


def plan_terms(
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    blocks: Blocks,
    dtype: torch.dtype,
) -> tuple[Callable[..., Terms], tuple[Tensor, ...]]:
    """(how to make the terms from the values of some tensors, these tensors as autograd knows them)."""
    plan = _Plan(positional, query_positions, key_positions, blocks, dtype)
    return plan.make, tuple(plan.tensors)


class _Plan:
    """Which terms there are, and which tensors each is made from."""

    def __init__(self, positional: PositionalEncoding, query_positions: Tensor, key_positions: Tensor, blocks: Blocks, dtype: torch.dtype):
        self.positional, self.blocks, self.dtype = positional, blocks, dtype
        self.query_positions, self.key_positions = query_positions.flip(-1), key_positions
        # then whatever depends on the distance alone lies along diagonals; but masks cut into what a kernel reads of it
        self.diagonal = blocks.mask.causal and consecutive(query_positions, key_positions, blocks)
        self.tensors: list[Tensor] = []
        self.bias = self.weight = self.hooked = self.map = None
        self.adds_bias = True
        table = self.plan_bias() if "bias" in positional.acts_on else None
        if "weight" in positional.acts_on:
            self.plan_weight()
        if {"scores", "adjust"} & positional.acts_on:
            self.hooked = self.take(positional("tensors"))
        if positional.score_map is not None:
            self.plan_map(table)

    def take(self, tensors: tuple[Tensor, ...]) -> slice:
        """Remember tensors; returns their places."""
        start = len(self.tensors)
        self.tensors += tensors
        return slice(start, len(self.tensors))

    def plan_bias(self) -> Tensor | None:
        """Returns the table [h, n] over distances where there is one."""
        if not self.positional.translation_invariant:
            self.bias = self.take(self.positional("tensors"))
            return None
        table = self.positional("distance_bias", self.distances()).to(self.dtype)
        score_map = self.positional.score_map
        if score_map is not None and not score_map.reads_scores and score_map.kernel_size == 1:  # all is a function of the distance
            hidden_weight, hidden_bias, output_weight, output_bias = (each.to(self.dtype) for each in score_map("tensors"))
            hidden = leaky_relu(hidden_weight[:, :, 0] @ table + hidden_bias[:, None], SLOPE)
            table = table + output_weight[:, :, 0] @ hidden + output_bias[:, None]
        self.bias = self.take((table,))
        return table

    def plan_weight(self) -> None:
        if self.positional.translation_invariant:
            self.weight = self.take((self.positional("distance_weight", self.distances()).to(self.dtype),))
        else:
            self.weight = self.take(self.positional("tensors"))

    def plan_map(self, table: Tensor | None) -> None:
        score_map, reach = self.positional.score_map, self.blocks.reach
        if not score_map.reads_scores and table is not None and not reach:
            return  # in the bias already
        hidden_weight, hidden_bias, output_weight, output_bias = (each.to(self.dtype) for each in score_map("tensors"))
        heads = self.positional.heads
        of_scores = hidden_weight[:, :heads].permute(2, 0, 1) if score_map.reads_scores else None  # [k, D, h]
        of_bias = hidden_weight[:, heads * score_map.reads_scores :].permute(2, 0, 1) if score_map.reads_bias else None
        self.adds_bias = score_map.adds_bias
        if of_bias is not None and of_scores is not None and self.adds_bias:
            of_bias = of_bias - of_scores  # the scores come with the bias added already
        self.map_weights = self.take((*(() if of_scores is None else (of_scores,)), output_weight.permute(2, 0, 1), output_bias))
        if of_bias is None:
            self.hidden, self.map = HiddenConstant, self.take((hidden_bias,))
        elif table is not None and self.diagonal and (not reach or self.blocks.only_causal):
            hidden_table, edge = hidden_tables(table, of_bias, hidden_bias, self.blocks)
            self.hidden, self.map = HiddenTable, self.take((hidden_table,) if edge is None else (hidden_table, edge))
        else:
            self.hidden, self.map = HiddenOfBias, self.take((hidden_bias, of_bias))

    def distances(self) -> Tensor:
        """[n]: all distances that can occur."""
        if self.diagonal:
            return torch.arange(self.blocks.keys, device=self.key_positions.device)
        q, k = self.query_positions, self.key_positions
        return torch.arange(int(torch.maximum(q.max() - k.min(), k.max() - q.min())) + 1, device=k.device)

    def make(self, tensors: tuple[Tensor, ...], differentiable: bool = False) -> Terms:
        """The terms from the values of `tensors`; `differentiable`: gradients will be asked for."""
        bias = None if self.bias is None else self.make_term(tensors[self.bias], "bias", differentiable)
        weight = None if self.weight is None else self.make_term(tensors[self.weight], "weight", differentiable)
        hooked = None
        if self.hooked is not None:
            positions = (self.query_positions, self.key_positions)
            hooked = Hooked(self.positional, tensors[self.hooked], *positions, self.blocks, differentiable)
        score_map = None
        if self.map is not None:
            *of_scores, output_weight, output_bias = tensors[self.map_weights]
            hidden = self.make_hidden(tensors[self.map], bias)
            score_map = TiledMap(of_scores[0] if of_scores else None, output_weight, output_bias, hidden, self.blocks)
        return Terms(bias, bias if self.adds_bias else None, weight, hooked, score_map)

    def make_term(self, tensors: tuple[Tensor, ...], hook: str, differentiable: bool) -> Term:
        """A bias or a weight."""
        if not self.positional.translation_invariant:
            positional = self.positional

            def compute(values: tuple[Tensor, ...], query_positions: Tensor, key_positions: Tensor) -> Tensor:
                return getattr(positional.with_tensors(values), hook)(query_positions, key_positions).to(self.dtype)

            return Computed(compute, tensors, self.query_positions, self.key_positions, differentiable)
        if self.diagonal:
            return Toeplitz(tensors[0], self.blocks)
        return Gathered(tensors[0], self.query_positions, self.key_positions)

    def make_hidden(self, tensors: tuple[Tensor, ...], bias: Term | None) -> HiddenTable | HiddenConstant | HiddenOfBias:
        """What the hidden layer takes from the bias and b1."""
        if self.hidden is HiddenConstant:
            return HiddenConstant(*tensors)
        if self.hidden is HiddenTable:
            return HiddenTable(tensors[0], tensors[1] if len(tensors) > 1 else None, self.blocks)
        return HiddenOfBias(*tensors, bias, self.blocks)


def consecutive(query_positions: Tensor, key_positions: Tensor, blocks: Blocks) -> bool:
    """Whether positions are n, n + 1, n + 2, ... for all sequences alike. Looked up in the values on a CPU; on a GPU that would wait."""
    if query_positions.dim() > 1 or key_positions.dim() > 1:
        return False
    if key_positions is blocks.mask.key_places:
        return True
    if key_positions.device.type != "cpu":
        return False
    return bool((key_positions.diff() == 1).all()) and torch.equal(query_positions, key_positions[-blocks.queries :])


def hidden_tables(table: Tensor, weight: Tensor, hidden_bias: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor | None]:
    """b1 + (the cross-correlation of weight [k, D, h] with the bias of table [h, n]), as a function of the distance.

    Returns [D, reach + n] over the distances -reach ... n - 1, where the bias behind distance 0 is zero; and for a kernel the columns
    0 ... reach - 1, which miss what lies before the start of the sequence: [reach, D, q], queries reversed.
    """
    reach, keys, queries = blocks.reach, blocks.keys, blocks.queries
    wide = pad(table, (2 * reach, reach))  # distance m at index m + 2 reach
    everywhere = hidden_bias[:, None].expand(-1, keys + reach)
    for tap in range(len(weight)):
        start = 2 * reach - tap
        everywhere = everywhere + weight[tap] @ wide[:, start : start + keys + reach]
    if not reach:
        return everywhere, None
    edges = []
    for column in range(reach):
        edge = hidden_bias[:, None].expand(-1, queries)
        for tap in range(reach - column, len(weight)):
            start = keys - queries - (column + tap - reach) + 2 * reach
            edge = edge + weight[tap] @ wide[:, start : start + queries]
        edges.append(edge.flip(-1))
    return everywhere, torch.stack(edges)
