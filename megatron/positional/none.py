"""No positional encoding: the causal mask alone breaks the symmetry (NoPE; Haviv et al. 2022, Kazemnejad et al. 2023)."""

from megatron.positional.base import PositionalEncoding


class NoPositionalEncoding(PositionalEncoding):
    """All hooks at their do-nothing defaults."""

    shares_parameters = True
