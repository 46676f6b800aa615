"""Where documents end inside a training window, for GPT-NeoX's `reset_attention_mask`, `reset_position_ids` and `eod_mask_loss`."""

import torch
from torch import Tensor


def document_numbers(tokens: Tensor, eod: int) -> Tensor:
    """tokens [b, n] -> int64 [b, n]: 0 for the first document of a window, 1 for the next, ... An `eod` belongs to the document it ends.

    With `reset_attention_mask`, a token attends to those of its own number only.
    """
    ends = (tokens == eod).long()  # [b, n]
    return ends.cumsum(dim=1) - ends


def restarted_positions(tokens: Tensor, eod: int) -> Tensor:
    """tokens [b, n] -> int64 [b, n]: positions that count from 0 after every `eod`, for `reset_position_ids`."""
    index = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)  # [b, n]
    after_eod = torch.zeros_like(tokens, dtype=torch.bool)
    after_eod[:, 1:] = tokens[:, :-1] == eod
    starts = torch.where(after_eod, index, 0).cummax(dim=1).values  # [b, n]
    return index - starts


def loss_mask(inputs: Tensor, eod: int) -> Tensor:
    """inputs [b, n] -> float32 [b, n], for `eod_mask_loss`: 0 where the input is `eod`, else 1.

    There the model would have to predict how the next, unrelated document begins. `inputs` are window[:, :-1], as in GPT-NeoX.
    """
    return (inputs != eod).float()
