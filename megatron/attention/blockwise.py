"""Attention in blocks of query rows: exact, memory linear in the length, nothing computed that the causal mask hides.

Each block's scores are made, mapped and normalised, used, and forgotten; the backward pass, written by hand, makes them once more (as
in FlashAttention; Dao et al. 2022). All that an encoding says about the scores happens inside a block: a bias, a weight, DAPE's map with
any kernel, scores or adjustments of its own. Scores, softmax and the map are float32 at least, whatever the inputs' type.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron.attention.block_terms import Terms, plan_terms
from megatron.attention.blocks import Block, Blocks, fill_masked
from megatron.attention.mask import AttentionMask
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
class Call:
    """What one call computes, apart from its tensors."""

    blocks: Blocks
    make_terms: Callable[[tuple[Tensor, ...]], Terms]
    dropout: float
    seed: int

    def groups(self, q: Tensor, block: Block) -> list[slice]:
        """Sequences of the batch that are computed together."""
        size = 1 if q.device.type == "cpu" else max(1, GROUP // (q.shape[1] * block.rows * block.columns))
        return [slice(start, min(start + size, len(q))) for start in range(0, len(q), size)]

    def kept(self, like: Tensor, block: Block, batch: slice) -> Tensor:
        """Dropout's factors for probabilities [b, h, rows, columns]: 0 or 1 / (1 - p), the same each time they are asked for."""
        generator = torch.Generator(like.device).manual_seed((self.seed + block.first * 2**20 + batch.start) % 2**63)
        kept = torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float32) >= self.dropout
        return kept.to(like.dtype).div_(1 - self.dropout)


class _Work:
    """The inputs of a call in the type and order of the computation: float32 at least, queries reversed, empty keys on both sides."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, v: Tensor):
        high = torch.promote_types(q.dtype, torch.float32)
        self.call, self.blocks = call, call.blocks
        self.scale = 1 / math.sqrt(q.shape[-1])
        self.q = q.to(high).flip(2)  # [b, h, q, d], reversed
        self.k, self.v = (_pad_keys(each.to(high), self.blocks.reach) for each in (k, v))  # [b, h, k + 2 reach, d]
        self.rooms: dict[str, Tensor] = {}

    def room(self, name: str, block: Block, batch: slice) -> Tensor:
        """Workspace [b, h, rows, columns], the same memory for each block."""
        shape = (batch.stop - batch.start, self.q.shape[1], block.rows, block.columns)
        size = math.prod(shape)
        if name not in self.rooms or len(self.rooms[name]) < size:
            self.rooms[name] = self.q.new_empty(size)
        return self.rooms[name][:size].view(shape)

    def multiply(self, out: Tensor, a: Tensor, b: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        """out [b, h, n, m] = (out +) scale * a [b, h, n, x] @ b [b, h, x, m]."""
        torch.baddbmm(out.flatten(0, 1), a.flatten(0, 1), b.flatten(0, 1), beta=float(add), alpha=scale, out=out.flatten(0, 1))

    def score(self, terms: Terms, out: Tensor, block: Block, batch: slice, masked: Tensor | None, plain: Tensor | None = None) -> None:
        """All scores of a block before the map, [b, h, rows, columns] in `out`; those before a weight also in `plain`."""
        q, k = self.q[batch, :, block.queries], self.k[batch, :, block.padded_keys]
        if terms.hooked is not None:
            out.zero_() if block.reach else None
            out[..., block.reach : block.columns - block.reach] = terms.hooked.forward(q, self.k[batch, :, self.real(block)], batch)
        elif terms.weight is None and terms.added_bias is not None:
            out.copy_(terms.added_bias.values(batch).expand_as(out))
            self.multiply(out, q, k.mT, scale=self.scale, add=True)
        else:
            self.multiply(out, q, k.mT, scale=self.scale)
        if terms.weight is not None:
            if plain is not None:
                plain.copy_(out)
            out.mul_(terms.weight.values(batch))
        if terms.added_bias is not None and (terms.weight is not None or terms.hooked is not None):
            out.add_(terms.added_bias.values(batch))
        if block.reach:
            fill_masked(out, 0.0, block, masked)

    def real(self, block: Block) -> slice:
        """The block's keys, without the empty ones, in `k` and `v`."""
        return slice(block.start + block.reach, block.stop + block.reach)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Call, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        work, terms = _Work(call, q, k, v), call.make_terms(tensors)
        output = work.q.new_empty(*q.shape[:3], v.shape[-1])
        for block in call.blocks:
            masked = None if call.blocks.only_causal else call.blocks.masked(block)
            terms.begin(block)
            for batch in call.groups(q, block):
                hidden = masked if masked is None or len(masked) == 1 else masked[batch]
                scores = work.room("scores", block, batch)
                work.score(terms, scores, block, batch, hidden)
                if terms.map is not None:
                    terms.map.forward(scores, batch)
                fill_masked(scores, -math.inf, block, hidden)
                torch.softmax(scores, -1, out=scores)
                if call.dropout:
                    scores.mul_(call.kept(scores, block, batch))
                work.multiply(output[batch, :, block.queries], scores, work.v[batch, :, block.padded_keys])
        output = output.flip(2)
        ctx.call = call
        ctx.save_for_backward(q, k, v, output, *tensors)
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("blockwise attention has no second derivative (create_graph=True): use attention_backend: eager.")
        q, k, v, output, *tensors = ctx.saved_tensors
        call, work = ctx.call, _Work(ctx.call, q, k, v)
        terms = call.make_terms(tuple(tensors), differentiable=True)
        gradient = gradient.to(work.q.dtype)
        inner = (gradient * output).sum(-1, keepdim=True).flip(2)  # [b, h, q, 1], reversed
        gradient = gradient.flip(2)
        q_gradient, k_gradient, v_gradient = torch.empty_like(work.q), torch.zeros_like(work.k), torch.zeros_like(work.v)
        for block in call.blocks:
            masked = None if call.blocks.only_causal else call.blocks.masked(block)
            terms.begin(block)
            for batch in call.groups(q, block):
                hidden = masked if masked is None or len(masked) == 1 else masked[batch]
                scores, change = work.room("scores", block, batch), work.room("change", block, batch)
                plain = None if terms.weight is None else work.room("plain", block, batch)
                work.score(terms, scores, block, batch, hidden, plain)
                rows, keys = block.queries, block.padded_keys
                queries, inner_rows = work.q[batch, :, rows], inner[batch, :, rows]
                work.multiply(change, gradient[batch, :, rows], work.v[batch, :, keys].mT)
                kept = call.kept(scores, block, batch) if call.dropout else None
                if kept is not None:
                    change.mul_(kept)
                probabilities = scores if terms.map is None else work.room("mapped", block, batch)

                def normalise(part: slice) -> None:
                    """Mapped scores to probabilities, and the gradient of these to the gradient of those."""
                    tile = probabilities[:, :, part]
                    fill_masked(tile, -math.inf, block, hidden, part)
                    torch.softmax(tile, -1, out=tile)
                    change[:, :, part].sub_(inner_rows[:, :, part]).mul_(tile)

                if terms.map is None:
                    normalise(slice(0, block.rows))
                else:
                    terms.map.backward(scores, probabilities, change, batch, normalise)
                    if block.reach:
                        fill_masked(change, 0.0, block, hidden)
                if kept is not None:
                    probabilities.mul_(kept)
                work.multiply(v_gradient[batch, :, keys], probabilities.mT, gradient[batch, :, rows], add=True)
                if terms.added_bias is not None:
                    terms.added_bias.add_gradient(batch, change)
                if terms.weight is not None:
                    terms.weight.add_gradient(batch, plain.mul_(change))
                    change.mul_(terms.weight.values(batch))
                if terms.hooked is not None:
                    real = work.real(block)
                    q_part, k_part = terms.hooked.backward(change[..., block.reach : block.columns - block.reach])
                    q_gradient[batch, :, rows] = q_part
                    k_gradient[batch, :, real] += k_part
                else:
                    work.multiply(k_gradient[batch, :, keys], change.mT, queries, scale=work.scale, add=True)
                    work.multiply(q_gradient[batch, :, rows], change, work.k[batch, :, keys], scale=work.scale)
            terms.finish(block)
        real = slice(call.blocks.reach, call.blocks.reach + k.shape[2])
        found = (q_gradient.flip(2), k_gradient[:, :, real], v_gradient[:, :, real], *terms.gradients())
        return (None, *(each.to(tensor.dtype) for each, tensor in zip(found, (q, k, v, *tensors), strict=True)))


def _pad_keys(keys: Tensor, reach: int) -> Tensor:
    """[b, h, k, d] -> [b, h, k + 2 reach, d]."""
    return torch.nn.functional.pad(keys, (0, 0, reach, reach)) if reach else keys.contiguous()
