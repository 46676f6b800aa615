"""Keys and values of the tokens so far, so that a new token costs one row of attention."""

import torch
from torch import Tensor


class KeyValueCache:
    """One layer's cache. Room doubles when it runs out, so that n tokens cost O(n) copies. For inference: appending writes in place."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None  # [b, g, room, d]
        self._values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New [b, g, q, d] keys (already rotated) and values -> views of all [b, g, k, d] so far."""
        start, self.length = self.length, self.length + k.shape[2]
        if self._keys is None or self._keys.shape[2] < self.length:
            self._keys, self._values = (self._grown(old, new, start) for old, new in ((self._keys, k), (self._values, v)))
        self._keys[:, :, start : self.length] = k
        self._values[:, :, start : self.length] = v
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def _grown(self, old: Tensor | None, new: Tensor, used: int) -> Tensor:
        b, g, _, d = new.shape
        room = new.new_empty(b, g, self.length if old is None else max(self.length, 2 * old.shape[2]), d)
        if old is not None:
            room[:, :, :used] = old[:, :, :used]
        return room


class SequenceCache:
    """What is kept of the tokens so far: each layer's keys and values, and the ids where an encoding reads positions off the text."""

    def __init__(self, layers: int):
        self.layers = [KeyValueCache() for _ in range(layers)]
        self._tokens: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens cached in every layer."""
        return self.layers[0].length

    def append_tokens(self, tokens: Tensor) -> Tensor:
        """New ids [b, q] -> all ids [b, k] so far."""
        self._tokens = tokens if self._tokens is None else torch.cat([self._tokens, tokens], dim=1)
        return self._tokens
