"""Rotation, and a decay with the distance: the faster a pair of components turns, the sooner it fades (xPos; Sun et al. 2022)."""

import torch
from torch import Tensor

from megatron.config.positional import PositionalConfig
from megatron.config.xpos_span import GAMMA, longest_span
from megatron.errors import UserError
from megatron.positional.rotary import Rotary


class XPos(Rotary):
    """Pair m of the score of query i and key j is multiplied by zeta_m^((i - j) / scale base), zeta_m = (2m/n + 0.4) / 1.4 < 1.

    Queries get zeta^(p / scale base) and keys zeta^(-p / scale base), with p counted from the middle of the sequence so that neither grows
    out of its type: only differences of positions count, but queries and keys must agree on the middle. `rotary_scaling` applies to the
    angles, not to the decay.
    """

    def __init__(self, config: PositionalConfig, **sizes: int):
        super().__init__(config, **sizes)
        self.rotates_by_length = True
        self.scale_base, self.name = config.xpos_scale_base, config.pos_emb

    def magnitudes(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Raises UserError where the factors leave the range of `dtype`."""
        high = torch.promote_types(dtype, torch.float32)
        first, last = key_positions.aminmax(dim=-1, keepdim=True)  # [..., 1]
        if dtype == torch.float16 or key_positions.shape[-1] > self.longest(
            dtype
        ):  # not always: a GPU waits where its numbers are looked at
            self.check_length(int((last - first).max()) + 1, dtype)
        middle = (first + last) // 2
        rates = ((self.scaling.exponents(middle.to(high)) + GAMMA) / (1 + GAMMA)).log() / self.scale_base  # [n/2], negative, a position
        query, key = ((positions - middle).to(high)[..., None] * rates for positions in (query_positions, key_positions))
        factor = self.scaling.attention_factor
        return query.exp() * factor, (-key).exp() * factor

    def longest(self, dtype: torch.dtype) -> int:
        """How many tokens a sequence may span."""
        return longest_span(self.scale_base, torch.finfo(dtype).max, torch.finfo(torch.promote_types(dtype, torch.float32)).max)

    def check_length(self, length: int, dtype: torch.dtype) -> None:
        if length > self.longest(dtype):
            wider = "bfloat16 or float32, " if dtype == torch.float16 else ""
            raise UserError(
                f"A sequence that spans {length} tokens: pos_emb {self.name!r} with xpos_scale_base {self.scale_base:g} stays in range of "
                f"{str(dtype).removeprefix('torch.')} for {self.longest(dtype)}. Use {wider}shorter sequences, or train with a larger "
                "xpos_scale_base."
            )
