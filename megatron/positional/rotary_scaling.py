"""How fast each pair of a rotary encoding turns, beyond the length that it was trained at: `rotary_scaling`.

Pair m of the n rotating components turns by inverse_frequency_m radians a position: base^(-2m/n), which the strategies here slow down.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from megatron.config.positional import RotaryScaling


class Unscaled:
    """base^(-2m/n). Subclasses change it; each says whether it depends on the length of the sequence."""

    by_length: ClassVar[bool] = False

    def __init__(self, config: RotaryScaling, base: float, width: int, original_length: int):
        """`width` is n, the number of rotating components; `original_length` in tokens is that of `config`, or the training length."""
        self.config, self.base, self.width, self.original_length = config, base, width, original_length

    @property
    def attention_factor(self) -> float:
        """What rotated queries, and rotated keys, are multiplied by."""
        return 1.0

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        """Length in tokens [] or [b], of the angles' type and on their device -> [n/2], or [b, n/2] where it counts."""
        return self.base ** -self.exponents(length)

    def exponents(self, like: Tensor) -> Tensor:
        """2m/n for all pairs m: [n/2]."""
        return torch.arange(0, self.width, 2, device=like.device).to(like.dtype) / self.width


class Linear(Unscaled):
    """All positions divided by the factor (position interpolation; Chen et al. 2023, section 2.3)."""

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        return super().inverse_frequencies(length) / self.config.factor


class Ntk(Unscaled):
    """A base so large that the slowest pair is as slow as under `Linear`, and the fastest is unchanged (NTK-aware; YaRN, section 3.1)."""

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        stretch = self.config.factor ** (self.width / (self.width - 2))
        return (self.base * stretch) ** -self.exponents(length)


class Dynamic(Unscaled):
    """`Ntk` by as much as the length asks: unscaled up to the original length (dynamic NTK; YaRN, section 3.3)."""

    by_length = True

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        factor, longer = self.config.factor, length.clamp(min=self.original_length)
        stretch = (factor * longer / self.original_length - (factor - 1)) ** (self.width / (self.width - 2))
        return (self.base * stretch)[..., None] ** -self.exponents(length)


class Yarn(Unscaled):
    """Pairs that turn often within the original length are unchanged, slow ones divided by the factor (YaRN; Peng et al. 2023, 3.2)."""

    @property
    def attention_factor(self) -> float:
        """0.1 ln(factor) + 1 unless given (section 3.4)."""
        return self.config.attention_factor or 0.1 * math.log(self.config.factor) + 1

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        unscaled = super().inverse_frequencies(length)
        first = max(math.floor(self._pair_of(self.config.beta_fast)), 0)
        last = min(math.ceil(self._pair_of(self.config.beta_slow)), self.width - 1)
        pairs = torch.arange(self.width // 2, device=length.device).to(length.dtype)
        share = ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)  # that is divided: none up to pair `first`, all from `last`
        return unscaled * (1 - share) + unscaled / self.config.factor * share

    def _pair_of(self, turns: float) -> float:
        """Which pair, as a fraction, turns so many times within the original length."""
        return self.width * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(self.base))


class LongRope(Unscaled):
    """Each pair divided by its own factor: `short_factor` up to the original length, `long_factor` beyond (LongRoPE; Ding et al. 2024)."""

    by_length = True

    @property
    def attention_factor(self) -> float:
        """sqrt(1 + ln(factor) / ln(original length)) unless given."""
        return self.config.attention_factor or math.sqrt(1 + math.log(self.config.factor) / math.log(self.original_length))

    def inverse_frequencies(self, length: Tensor) -> Tensor:
        short, long = (length.new_tensor(factors) for factors in (self.config.short_factor, self.config.long_factor))  # [n/2]
        return super().inverse_frequencies(length) / torch.where((length > self.original_length)[..., None], long, short)


STRATEGIES: dict[str, type[Unscaled]] = {
    "none": Unscaled,
    "linear": Linear,
    "ntk": Ntk,
    "dynamic": Dynamic,
    "yarn": Yarn,
    "longrope": LongRope,
}
