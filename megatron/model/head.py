"""The last layer: hidden states to logits or losses."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from megatron.config.model import ModelConfig
from megatron.model.loss import LinearCrossEntropy, rows_at_once
from megatron.model.norms import build_norm


class Head(nn.Module):
    """Final norm and output projection. Ids that pad the vocabulary are cut from the logits: never a loss, never a sample."""

    def __init__(self, config: ModelConfig, vocabulary: int, padded_vocabulary: int, tied: nn.Parameter | None):
        """`tied` is the word embeddings' weight, or None for a projection of its own."""
        super().__init__()
        self.vocabulary = vocabulary
        self.norm = build_norm(config)
        self.weight = nn.Parameter(torch.empty(padded_vocabulary, config.hidden_size)) if tied is None else tied

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """[b, q, hidden] -> logits [b, q, vocabulary]; with labels [b, q], each token's cross-entropy [b, q] (float32 at least).

        Where no gradient is recorded, the logits of a share of the tokens exist at a time.
        """
        x = self.norm(x)
        if labels is None:
            return linear(x, self.weight)[..., : self.vocabulary]
        if labels.shape != x.shape[:-1]:
            raise ValueError(f"labels are {list(labels.shape)}, but the head is asked for {list(x.shape[:-1])} tokens")
        x, targets = x.flatten(0, -2), labels.flatten()  # [b * q, hidden], [b * q]
        rows = len(x) if torch.is_grad_enabled() else rows_at_once(len(self.weight), x.device)  # without a backward pass, logits are brief
        parts = zip(x.split(rows), targets.split(rows), strict=True)
        losses = [LinearCrossEntropy.apply(part, self.weight, labels_of_part, self.vocabulary) for part, labels_of_part in parts]
        return torch.cat(losses).view_as(labels)
