"""Which positional encoding, and its hyper-parameters. methods.py lists the names."""

from collections.abc import Iterator
from typing import Literal

from megatron.config.base import Group, key


class RotaryScaling(Group):
    """`rotary_scaling`: angles of rotary encodings for sequences beyond the length that a model was trained at."""

    type: Literal["none", "linear", "ntk", "dynamic", "yarn", "longrope"] = key(
        "none", "How the angles are slowed down (megatron/positional/rotary_scaling.py names the papers)."
    )
    factor: float | None = key(None, "How many times the original length is to be reached; all types but none need it.", ge=1, le=10**6)
    original_length: int | None = key(
        None, "dynamic, yarn, longrope: tokens that the angles were trained for; default: seq_length.", ge=2, le=10**9
    )
    beta_fast: float = key(32.0, "yarn: pairs that turn so often within the original length keep their angles.", ge=1e-3, le=10**6)
    beta_slow: float = key(1.0, "yarn: pairs that turn no more often than this are slowed down by the whole factor.", ge=1e-3, le=10**6)
    attention_factor: float | None = key(
        None,
        "yarn, longrope: what rotated queries, and rotated keys, are multiplied by; default: by the paper's formula.",
        ge=1e-3,
        le=10**3,
    )
    short_factor: list[float] | None = key(None, "longrope: divisor of each pair's angle up to the original length.")
    long_factor: list[float] | None = key(None, "longrope: divisor of each pair's angle beyond the original length.")

    def completed(self, seq_length: int) -> "RotaryScaling":
        """With the default of `original_length`, where the type reads it."""
        if self.original_length is not None or "original_length" not in READ_BY[self.type]:
            return self
        return self.model_copy(update={"original_length": seq_length})

    def problems(self, rotating: int, base: float) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it) for `rotating` components of a head and `rotary_emb_base` = `base`."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name != "type" and value != field.default and name not in READ_BY[self.type]:
                types = [kind for kind, names in READ_BY.items() if name in names]
                yield f"rotary_scaling.{name}", f"has no effect with type {self.type}, only with {', '.join(types)}; remove it."
            if name in READ_BY[self.type] & {"factor", "short_factor", "long_factor"} and value is None:
                yield f"rotary_scaling.{name}", f"is missing: type {self.type} needs it."
        if self.type in ("ntk", "dynamic") and rotating < 4:
            yield "rotary_scaling.type", f"{self.type} needs at least 4 rotating dimensions of a head, not {rotating}; use linear."
        if self.type == "yarn":
            if self.beta_slow >= self.beta_fast:
                yield "rotary_scaling.beta_slow", f"{self.beta_slow:g} must be less than beta_fast {self.beta_fast:g}."
            if base <= 1:
                yield "rotary_emb_base", f"must be more than 1 for rotary_scaling.type: yarn, not {base:g}."
        if self.type == "longrope":
            for name in ("short_factor", "long_factor"):
                factors = getattr(self, name)
                if factors is not None and len(factors) != rotating // 2:
                    yield f"rotary_scaling.{name}", f"{len(factors)} factors for {rotating // 2} pairs of dimensions; give one each."
                if factors is not None and not all(1e-3 <= factor <= 1e6 for factor in factors):
                    yield f"rotary_scaling.{name}", "factors must be from 0.001 to 1,000,000."


READ_BY: dict[str, set[str]] = {  # type of `rotary_scaling` -> the other keys of the block that it reads
    "none": set(),
    "linear": {"factor"},
    "ntk": {"factor"},
    "dynamic": {"factor", "original_length"},
    "yarn": {"factor", "original_length", "beta_fast", "beta_slow", "attention_factor"},
    "longrope": {"factor", "original_length", "attention_factor", "short_factor", "long_factor"},
}


LEAKAGE = (
    "WARNING: dape_information_leakage: true. The DAPE map reads scores of later tokens: the model sees a part of what it predicts. All "
    "losses and perplexities of this run are those of the ablation, and comparable with no other model's."
)


class PositionalConfig(Group):
    """Keys of the positional encodings (megatron/positional names the papers)."""

    pos_emb: str = key("learned", "Positional encoding; `python -m megatron.positional` lists the names and aliases.")
    position_sampling: Literal["sequential", "randomized"] = key(
        "sequential",
        "Positions 0, 1, 2, ... of a sequence, or as many drawn for every sequence anew from 0 ... position_max - 1, in ascending order, "
        "in training, evaluation and generation (Ruoss et al. 2023).",
    )
    position_max: int | None = key(
        None, "randomized: the number of positions to draw from; at least the longest length of all.", ge=1, le=10**6
    )
    rotary_pct: float = key(1.0, "Share of each head's dimensions that rotate.", gt=0, le=1)
    rotary_emb_base: float = key(10000.0, "Base of the rotary angles.", ge=1, le=1e15)
    rotary_scaling: RotaryScaling = key(None, "Longer sequences for methods that rotate.", default_factory=RotaryScaling)
    xpos_scale_base: float = key(512.0, "xPos: tokens over which a pair of components fades by its own factor; larger is slower.", gt=0)
    rpe_num_buckets: int = key(32, "T5: number of distance buckets.", ge=2, le=10**7)
    rpe_max_distance: int = key(128, "T5: distance at which the last bucket begins.", ge=2, le=10**7)
    kerple_shared: bool = key(
        False, "KERPLE: one set of parameters for all layers (as in KERPLE's runs) instead of one per layer (as in DAPE's)."
    )
    fire_hidden_size: int = key(32, "FIRE: width D of its MLP.", ge=1, le=10**7)
    fire_threshold: int | None = key(None, "FIRE: the fixed length L in tokens; default seq_length // 2.", ge=1, le=10**7)
    fire_activation: Literal["relu", "leaky_relu"] | None = key(
        None, "FIRE: activation of its MLP; default relu (as in FIRE's runs), and leaky_relu under a DAPE map (as in DAPE's)."
    )
    cope_max_position: int = key(64, "CoPE: number of contextual positions P.", ge=2, le=10**7)
    bipe_segment_tokens: list[int] | None = key(
        None,
        "BiPE: ids of the tokens that end a segment of the text, such as those of a full stop and a line break (configs/README.md shows "
        "how to find them); required by its methods.",
        min_length=1,
    )
    bipe_segment_length: int = key(256, "BiPE: rows of its table; a segment of more tokens is cut into several.", ge=1, le=10**7)
    dape_hidden_size: int = key(32, "DAPE: width D of the map over heads.", ge=1, le=10**7)
    dape_kernel_size: int = key(1, "DAPE: kernel along the keys; 1 is DAPE, odd values from 3 are DAPE V2.", ge=1, le=10**7)
    dape_form: Literal["s+b+f(s,b)", "s+f(s,b)", "s+b+f(b)"] = key("s+b+f(s,b)", "DAPE: what the map reads and what it is added to.")
    dape_init: Literal["torch", "identity"] = key(
        "torch", "DAPE: both layers of the map start as torch's do, or the last one as zeros: the map then changes nothing at first."
    )
    dape_information_leakage: bool = key(
        False,
        "DAPE V2's ablation: the map reads the whole square of scores, so that a kernel of 3 or more carries later tokens into earlier "
        "rows. Losses and perplexities of such a model say nothing about language modelling; attention_backend: eager alone.",
    )

    def warnings(self) -> tuple[str, ...]:
        """What every user of a model with these keys has to know."""
        return (LEAKAGE,) if self.dape_information_leakage else ()
