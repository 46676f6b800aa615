"""From logits to the next token."""

import torch
from torch import Tensor


def sample(logits: Tensor, uniform: Tensor, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0) -> Tensor:
    """Logits [b, vocabulary] and one number in [0, 1) per row [b] -> token ids [b].

    Temperature 0 is greedy. Else the distribution at that temperature is cut to the `top_k` likeliest (0: all), then to the smallest set
    that holds a share of `top_p` (0: all; nucleus sampling, Holtzman et al. 2019), and read off at `uniform`.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    high = logits.double() / temperature
    ordered, ids = high.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    if top_k:
        probabilities[:, top_k:] = 0
        probabilities /= probabilities.sum(dim=-1, keepdim=True)
    if top_p:
        likelier = probabilities.cumsum(dim=-1) - probabilities  # share of what comes before: the first is always kept
        probabilities[likelier >= top_p] = 0
    edges = probabilities.cumsum(dim=-1)
    place = torch.searchsorted(edges, uniform.to(edges)[:, None] * edges[:, -1:], right=True)
    return ids.gather(-1, place.clamp(max=logits.shape[-1] - 1)).squeeze(-1)
