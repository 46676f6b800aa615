"""Which positional encoding, and its hyper-parameters. Names are checked against megatron/positional/registry.py."""

from typing import Literal

from megatron.config.base import Group, key


class PositionalConfig(Group):
    """Keys of the positional encodings (megatron/positional names the papers)."""

    pos_emb: str = key("learned", "Positional encoding; `python -m megatron.positional` lists the names and aliases.")
    rotary_pct: float = key(1.0, "Share of each head's dimensions that rotate.", gt=0, le=1)
    rotary_emb_base: float = key(10000.0, "Base of the rotary angles.", gt=0)
    rpe_num_buckets: int = key(32, "T5: number of distance buckets.", ge=2, le=10**7)
    rpe_max_distance: int = key(128, "T5: distance at which the last bucket begins.", ge=2, le=10**7)
    kerple_shared: bool = key(
        False, "KERPLE: one set of parameters for all layers (as in KERPLE's runs) instead of one per layer (as in DAPE's)."
    )
    fire_hidden_size: int = key(32, "FIRE: width D of its MLP.", ge=1, le=10**7)
    fire_threshold: int | None = key(None, "FIRE: the fixed length L in tokens; default seq_length // 2.", ge=1, le=10**7)
    cope_max_position: int = key(64, "CoPE: number of contextual positions P.", ge=2, le=10**7)
    dape_hidden_size: int = key(32, "DAPE: width D of the map over heads.", ge=1, le=10**7)
    dape_kernel_size: int = key(1, "DAPE: kernel along the keys; 1 is DAPE, odd values from 3 are DAPE V2.", ge=1, le=10**7)
    dape_form: Literal["s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)"] = key("s+b+f(s,b)", "DAPE: what the map reads and what it is added to.")
