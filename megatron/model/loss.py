"""Cross-entropy of a linear projection to a large vocabulary: one buffer for all logits, turned into their gradient where it lies.

torch's own way holds the logits, their log-softmax and its gradient, each [tokens, vocabulary], and passes over memory for each of them.
"""

import torch
from torch import Tensor

LOGITS = {"cpu": 2**22, "cuda": 2**28}  # passed over at once: what a CPU's cache, or a share of a GPU's memory, holds


class LinearCrossEntropy(torch.autograd.Function):
    """(x [n, hidden], weight [V, hidden], labels [n], vocabulary <= V) -> each token's cross-entropy [n], float32 at least.

    Rows of the weight from `vocabulary` on are padding: they have no probability, and no gradient. Differentiable once.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, labels: Tensor, vocabulary: int) -> Tensor:
        logits = x @ weight.T
        losses = torch.empty_like(labels, dtype=torch.promote_types(x.dtype, torch.float32))
        normalisers = torch.empty_like(losses)
        for rows in _chunks(logits):
            chunk = logits[rows, :vocabulary].to(losses.dtype)
            normalisers[rows] = chunk.logsumexp(dim=-1)
            losses[rows] = normalisers[rows] - chunk.gather(-1, labels[rows, None])[:, 0]
        ctx.save_for_backward(x, weight, labels, normalisers)
        ctx.logits, ctx.vocabulary = logits, vocabulary
        return losses

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("the loss has no second derivative (create_graph=True)")
        if ctx.logits is None:
            raise RuntimeError("the loss was differentiated already: its logits have become its gradient (retain_graph=True)")
        x, weight, labels, normalisers = ctx.saved_tensors
        logits, ctx.logits = ctx.logits, None
        for rows in _chunks(logits):
            real = logits[rows, : ctx.vocabulary]
            chunk = real.to(normalisers.dtype)  # the logits themselves where they are float32
            chunk.sub_(normalisers[rows, None]).exp_()
            chunk.scatter_add_(-1, labels[rows, None], -torch.ones_like(normalisers[rows, None]))
            real.copy_(chunk.mul_(gradient[rows, None]))
            logits[rows, ctx.vocabulary :] = 0
        x_gradient = logits @ weight if ctx.needs_input_grad[0] else None
        weight_gradient = logits.T @ x if ctx.needs_input_grad[1] else None
        return x_gradient, weight_gradient, None, None


def rows_at_once(width: int, device: torch.device) -> int:
    """Rows of `width` logits that are passed over at once."""
    return max(1, LOGITS["cpu" if device.type == "cpu" else "cuda"] // width)


def _chunks(logits: Tensor) -> list[slice]:
    """Rows of logits [n, V] that pass by pass stay where they are quickly read; the products take all rows at once."""
    size = rows_at_once(logits.shape[1], logits.device)
    return [slice(start, start + size) for start in range(0, len(logits), size)]
