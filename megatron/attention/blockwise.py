"""Attention in blocks of query rows: exact, memory linear in the length, nothing computed that the causal mask hides.

Each block's scores are made, mapped and normalised, used, and forgotten; the backward pass, written by hand, makes them once more (as
in FlashAttention; Dao et al. 2022). All that an encoding says about the scores happens inside a block: a bias, a weight, DAPE's map with
any kernel, scores or adjustments of its own. Scores, softmax and the map are float32 at least, whatever the inputs' type.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from megatron.attention.block_terms import Terms, plan_terms
from megatron.attention.blocks import Block, Blocks, fill_masked
from megatron.attention.mask import AttentionMask
from megatron.attention.workers import deal_out
from megatron.positional.base import PositionalEncoding

GROUP = 2**25  # most scores of a block on a GPU, where several sequences share a block; a CPU core takes them one by one


def blockwise_attention(
    q: Tensor,  # [b, h, q, d]
    k: Tensor,  # [b, g, k, d], g divides h
    v: Tensor,  # [b, g, k, d]
    positional: PositionalEncoding,
    query_positions: Tensor,  # [q] or [b, q]
    key_positions: Tensor,  # [k] or [b, k]
    mask: AttentionMask,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attention of already rotated queries and keys -> [b, h, q, d]; the queries are the last of the keys' places.

    Differentiable once: asking for a gradient with `create_graph=True` raises NotImplementedError.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # [b, h, k, d]
    reach = 0 if positional.score_map is None else positional.score_map.kernel_size // 2
    blocks = Blocks(mask, q.shape[2], k.shape[2], reach)
    high = torch.promote_types(q.dtype, torch.float32)
    make_terms, tensors = plan_terms(positional, query_positions, key_positions, blocks, high)
    seed = int(torch.randint(2**62, ())) if dropout_probability > 0 else 0
    return _Blockwise.apply(Call(blocks, make_terms, dropout_probability, seed), q, k, v, *tensors)


@dataclass(frozen=True)
class Part:
    """Rows of a block for some sequences of the batch: what is computed at once."""

    block: Block
    batch: slice
    queries: slice  # in their own order
    masked: Tensor | None  # bool [1 or b, 1, rows, columns]; None: the triangle alone

    @property
    def rows(self) -> tuple[slice, slice, slice]:
        """Of queries [b, h, q, ...], in their own order."""
        return self.batch, slice(None), self.queries

    @property
    def keys(self) -> tuple[slice, slice, slice]:
        """Of padded keys [b, h, k + 2 reach, ...], with the empty ones on both sides."""
        return self.batch, slice(None), self.block.padded_keys

    @property
    def real_keys(self) -> tuple[slice, slice, slice]:
        """Of padded keys, without the empty ones."""
        return self.batch, slice(None), slice(self.block.start + self.block.reach, self.block.stop + self.block.reach)

    @property
    def real_columns(self) -> slice:
        """Of the block's columns, without the empty ones."""
        return slice(self.block.reach, self.block.columns - self.block.reach)


@dataclass(frozen=True)
class Call:
    """What one call computes, apart from its tensors."""

    blocks: Blocks
    make_terms: Callable[..., Terms]
    dropout: float
    seed: int

    def parts(self, block: Block, like: Tensor) -> Iterator[Part]:
        """All sequences of a batch like [b, h, ...]: one by one on a CPU, several at once on a GPU."""
        masked = None if self.blocks.only_causal else self.blocks.masked(block)
        size = 1 if like.device.type == "cpu" else max(1, GROUP // (like.shape[1] * block.rows * block.columns))
        for start in range(0, len(like), size):
            batch = slice(start, min(start + size, len(like)))
            yield Part(block, batch, self.blocks.in_order(block), masked if masked is None or len(masked) == 1 else masked[batch])

    def kept(self, like: Tensor, part: Part) -> Tensor:
        """Dropout's factors for probabilities [b, h, rows, columns]: 0 or 1 / (1 - p), the same each time they are asked for."""
        generator = torch.Generator(like.device).manual_seed((self.seed + part.block.first * 2**20 + part.batch.start) % 2**63)
        kept = torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float32) >= self.dropout
        return kept.to(like.dtype).div_(1 - self.dropout)


class _Work:
    """A call's inputs; keys and values in the type of the computation, float32 at least, with empty ones on both sides."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, v: Tensor):
        self.high = high = torch.promote_types(q.dtype, torch.float32)
        self.call, self.scale, self.q = call, 1 / math.sqrt(q.shape[-1]), q
        reach = call.blocks.reach
        self.k, self.v = (pad(each.to(high), (0, 0, reach, reach)) if reach else each.to(high).contiguous() for each in (k, v))

    def share(self, terms: Terms) -> "_Work":
        """The same inputs and results, with terms and workspaces of its own: for one of several threads."""
        twin = copy(self)
        twin.terms, twin.rooms = terms, {}
        return twin

    def room(self, name: str, part: Part) -> Tensor:
        """Workspace [b, h, rows, columns], the same memory for each block."""
        shape = (part.batch.stop - part.batch.start, self.q.shape[1], part.block.rows, part.block.columns)
        size = math.prod(shape)
        if name not in self.rooms or len(self.rooms[name]) < size:
            self.rooms[name] = self.k.new_empty(size)
        return self.rooms[name][:size].view(shape)

    def reversed_rows(self, tensor: Tensor, part: Part) -> Tensor:
        """A part's rows of [b, h, q, d], last row first: [b, h, rows, d]. Piece by piece, for a second whole tensor costs page faults."""
        return tensor[part.rows].to(self.high).contiguous().flip(2)

    def scores(self, part: Part, q: Tensor, plain: Tensor | None = None) -> Tensor:
        """All scores of a part's queries [b, h, rows, d] before the map, [b, h, rows, columns]; those before a weight also in `plain`."""
        terms, out = self.terms, self.room("scores", part)
        if terms.hooked is not None:
            if part.block.reach:
                out.zero_()
            out[..., part.real_columns] = terms.hooked.forward(q, self.k[part.real_keys], part.batch)
        elif terms.weight is None and terms.added_bias is not None:
            out.copy_(terms.added_bias.values(part.batch).expand_as(out))
            multiply(out, q, self.k[part.keys].mT, scale=self.scale, add=True)
        else:
            multiply(out, q, self.k[part.keys].mT, scale=self.scale)
        if terms.weight is not None:
            if plain is not None:
                plain.copy_(out)
            out.mul_(terms.weight.values(part.batch))
        if terms.added_bias is not None and (terms.weight is not None or terms.hooked is not None):
            out.add_(terms.added_bias.values(part.batch))
        if part.block.reach:
            fill_masked(out, 0.0, part.block, part.masked)
        return out

    def attend(self, part: Part, output: Tensor) -> None:
        """Write a part's rows of output [b, h, q, d]."""
        q = self.reversed_rows(self.q, part)
        scores = self.scores(part, q)
        if self.terms.map is not None:
            self.terms.map.forward(scores, part.batch)
        fill_masked(scores, -math.inf, part.block, part.masked)
        torch.softmax(scores, -1, out=scores)
        if self.call.dropout:
            scores.mul_(self.call.kept(scores, part))
        rows = output.new_empty(*q.shape[:3], output.shape[-1])
        multiply(rows, scores, self.v[part.keys])
        output[part.rows] = rows.flip(2)


class _Gradients(_Work):
    """A call's inputs, and the gradients that they collect."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, v: Tensor, output: Tensor, gradient: Tensor):
        super().__init__(call, q, k, v)
        self.output, self.gradient = output, gradient  # [b, h, q, d]; the second is the first's
        self.of_q = torch.empty_like(q)  # each row is one part's

    def share(self, terms: Terms) -> "_Gradients":
        twin = super().share(terms)
        twin.of_k, twin.of_v = torch.zeros_like(self.k), torch.zeros_like(self.v)  # every block adds to them
        return twin

    def sums(self) -> tuple[Tensor, ...]:
        """What is to be added up over the shares: gradients of padded keys and values, and of the terms' tensors."""
        return self.of_k, self.of_v, *self.terms.gradients()

    def collect(self, part: Part) -> None:
        """Make a part's scores once more, and take it backwards."""
        terms, q, gradient = self.terms, self.reversed_rows(self.q, part), self.reversed_rows(self.gradient, part)
        inner = (gradient * self.reversed_rows(self.output, part)).sum(-1, keepdim=True)  # [b, h, rows, 1]
        plain = None if terms.weight is None else self.room("plain", part)
        scores, change = self.scores(part, q, plain), self.room("change", part)  # change: the gradient of probabilities, then of scores
        multiply(change, gradient, self.v[part.keys].mT)
        kept = self.call.kept(change, part) if self.call.dropout else None
        if kept is not None:
            change.mul_(kept)
        if terms.map is None:
            probabilities = scores
            self.normalise(part, probabilities, change, inner, slice(0, part.block.rows))
        else:
            probabilities = self.room("mapped", part)
            terms.map.backward(scores, probabilities, change, part.batch, partial(self.normalise, part, probabilities, change, inner))
            if part.block.reach:
                fill_masked(change, 0.0, part.block, part.masked)
        if kept is not None:
            probabilities.mul_(kept)
        multiply(self.of_v[part.keys], probabilities.mT, gradient, add=True)
        if terms.added_bias is not None:
            terms.added_bias.add_gradient(part.batch, change)
        if terms.weight is not None:
            terms.weight.add_gradient(part.batch, plain.mul_(change))
            change.mul_(terms.weight.values(part.batch))
        if terms.hooked is not None:
            of_rows, of_keys = terms.hooked.backward(change[..., part.real_columns])
            self.of_k[part.real_keys] += of_keys
        else:
            multiply(self.of_k[part.keys], change.mT, q, scale=self.scale, add=True)
            of_rows = torch.empty_like(q)
            multiply(of_rows, change, self.k[part.keys], scale=self.scale)
        self.of_q[part.rows] = of_rows.flip(2)

    def normalise(self, part: Part, probabilities: Tensor, change: Tensor, inner: Tensor, rows: slice) -> None:
        """In these rows: mapped scores to probabilities, and the gradient of the latter to that of the former.

        `inner` [b, h, rows, 1] is the output's product with its gradient.
        """
        tile = probabilities[:, :, rows]
        fill_masked(tile, -math.inf, part.block, part.masked, rows)
        torch.softmax(tile, -1, out=tile)
        change[:, :, rows].sub_(inner[:, :, rows]).mul_(tile)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        work = _Work(call, q, k, v)
        output = work.k.new_empty(*q.shape[:3], v.shape[-1])

        def attend(blocks: Sequence[Block]) -> None:
            share = work.share(call.make_terms(tensors))
            for block in blocks:
                share.terms.begin(block)
                for part in call.parts(block, q):
                    share.attend(part, output)

        deal_out(attend, list(call.blocks), q.device)
        ctx.call = call
        ctx.save_for_backward(q, k, v, output, *tensors)
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("blockwise attention has no second derivative (create_graph=True): use attention_backend: eager.")
        q, k, v, output, *tensors = ctx.saved_tensors
        call = ctx.call
        work = _Gradients(call, q, k, v, output, gradient)

        def collect(blocks: Sequence[Block]) -> tuple[Tensor, ...]:
            share = work.share(call.make_terms(tuple(tensors), differentiable=True))
            for block in blocks:
                share.terms.begin(block)
                for part in call.parts(block, q):
                    share.collect(part)
                share.terms.finish(block)
            return share.sums()

        shares = deal_out(collect, list(call.blocks), q.device)
        of_k, of_v, *of_tensors = (reduce(torch.add, parts) for parts in zip(*shares, strict=True))
        real = slice(call.blocks.reach, call.blocks.reach + k.shape[2])
        found = (work.of_q, of_k[:, :, real], of_v[:, :, real], *of_tensors)
        return (None, *(each.to(tensor.dtype) for each, tensor in zip(found, (q, k, v, *tensors), strict=True)))


def multiply(out: Tensor, a: Tensor, b: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
    """out [b, h, n, m] = (out +) scale * a [b, h, n, x] @ b [b, h, x, m]."""
    out.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1), beta=float(add), alpha=scale)
