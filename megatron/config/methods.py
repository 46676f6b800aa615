"""The list of positional encodings: one line a method. Imports no torch, so that a wrong name costs nothing to find.

A line names the class as text, and says what must be known before torch is there. Imports run one way: megatron/positional (which has the
classes), megatron/monitor and derive.py ask this list, and it asks none of them. Whether a check or a default applies to a method follows
from the keys that the method reads, never from its name. The published fork's names are translated when files are read (aliases.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from megatron.config.aliases import POSITIONAL
from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig

MAPPED = "dape_"  # `dape_<name or alias>`: that method under a DAPE map over the heads


@dataclass(frozen=True)
class Method:
    """A registered method: where its class is, what it is in one line, and facts that are needed before torch is there."""

    location: str  # "module:Class"; a module without a dot is one of megatron.positional
    description: str
    options: tuple[str, ...] = ()  # the configuration keys that it reads
    aliases: tuple[str, ...] = ()
    adds_bias: bool = False  # has a bias of its own, which a DAPE map reads beside the scores
    pairs_hidden: bool = False  # works on pairs of the hidden components
    sees_positions: bool = True  # works with the positions that a sequence is given; False: with its order or its text alone
    products: Callable[[PositionalConfig, int], int] = lambda config, length: 0  # vectors that a query is multiplied with, beside the keys

    def load(self) -> type:
        """Import the module (and with it torch) and return the class, a megatron.positional.base.PositionalEncoding."""
        module, name = self.location.split(":")
        return getattr(import_module(f"megatron.positional.{module}" if "." not in module else module), name)


ROTARY_OPTIONS = ("rotary_pct", "rotary_emb_base", "rotary_scaling")

METHODS: dict[str, Method] = {
    "none": Method("none:NoPositionalEncoding", "nothing: causal attention alone (NoPE)", aliases=("nope",), sees_positions=False),
    "learned": Method("learned:Learned", "a learned table added to the word embeddings", ("max_position_embeddings",)),
    "sinusoidal": Method("sinusoidal:Sinusoidal", "fixed sines and cosines added to the word embeddings", pairs_hidden=True),
    "rotary": Method("rotary:Rotary", "queries and keys rotated by their position (RoPE)", ROTARY_OPTIONS, ("rope",)),
    "xpos": Method("xpos:XPos", "rotary, and a decay with the distance, by pair (xPos)", (*ROTARY_OPTIONS, "xpos_scale_base")),
    "alibi": Method("alibi:Alibi", "a fixed linear bias, one slope a head (ALiBi)", adds_bias=True),
    "t5": Method(
        "t5:T5", "a learned bias for each bucket of distances (T5)", ("rpe_num_buckets", "rpe_max_distance"), ("rpe",), adds_bias=True
    ),
    "kerple_log": Method(
        "kerple:KerpleLog", "a learned logarithmic bias, two parameters a head (KERPLE)", ("kerple_shared",), ("kerple",), adds_bias=True
    ),
    "kerple_log3": Method(
        "kerple:KerpleLog3", "KERPLE's logarithmic bias with a third parameter, an exponent", ("kerple_shared",), adds_bias=True
    ),
    "kerple_power": Method("kerple:KerplePower", "KERPLE's power-law bias", ("kerple_shared",), ("kerple_power_ap_",), adds_bias=True),
    "kerple_power_weight": Method(
        "kerple:KerplePowerWeight", "KERPLE's Gaussian-like kernel, a weight on the scores", ("kerple_shared",), ("kerple_power__ap",)
    ),
    "kerple_power_both": Method(
        "kerple:KerplePowerBoth", "KERPLE's weight and power-law bias", ("kerple_shared",), ("kerple_power_ap_ap",), adds_bias=True
    ),
    "fire": Method(
        "fire:Fire",
        "a small network of the relative distance, log-scaled (FIRE)",
        ("fire_hidden_size", "fire_threshold", "fire_activation"),
        adds_bias=True,
    ),
    "transformer_xl": Method(
        "transformer_xl:TransformerXL",
        "content and position scores of Transformer-XL",
        aliases=("xl_bias",),
        products=lambda config, length: length,  # the projected sinusoid of each distance
    ),
    "cope": Method(
        "cope:Cope",
        "positions counted by gates on the scores (CoPE)",
        ("cope_max_position",),
        sees_positions=False,
        products=lambda config, length: config.cope_max_position,  # the table of contextual positions
    ),
    "bipe_rotary": Method(
        "bipe:BipeRotary",
        "a learned table of places inside a segment of the text, and rotation by the segment's number (BiPE)",
        ("bipe_segment_tokens", "bipe_segment_length", *ROTARY_OPTIONS),
        sees_positions=False,
    ),
    "bipe_alibi": Method(
        "bipe:BipeAlibi",
        "a learned table of places inside a segment of the text, and ALiBi over the segments' numbers (BiPE)",
        ("bipe_segment_tokens", "bipe_segment_length"),
        adds_bias=True,
        sees_positions=False,
    ),
}

DAPE_OPTIONS = ("dape_kernel_size", "dape_hidden_size", "dape_form", "dape_init", "dape_information_leakage")


@dataclass(frozen=True)
class ResolvedMethod:
    """What a `pos_emb` stands for."""

    base: str  # a key of METHODS
    mapped: bool = False  # under a DAPE map

    @property
    def name(self) -> str:
        """The canonical name: the same encoding, whichever alias led here."""
        return MAPPED + self.base if self.mapped else self.base

    @property
    def method(self) -> Method:
        """The registered base method."""
        return METHODS[self.base]

    def reads(self, key: str) -> bool:
        """Whether the configuration key means something to the base method."""
        return key in self.method.options


def resolve(name: str) -> ResolvedMethod:
    """Find the method behind a name or alias. Raises ConfigError that lists the nearest candidates and all names."""
    mapped = name.startswith(MAPPED)
    wanted = name.removeprefix(MAPPED)
    for base, method in METHODS.items():
        if wanted == base or wanted in method.aliases:
            return ResolvedMethod(base, mapped)
    raise ConfigError(_unknown(name))


def names() -> list[str]:
    """Every name and alias of a base method; each also has its `dape_` form."""
    return [name for base, method in METHODS.items() for name in (base, *method.aliases)]


def _unknown(name: str) -> str:
    candidates = [*names(), *POSITIONAL, *(MAPPED + each for each in names())]
    nearest = get_close_matches(name, candidates, n=6, cutoff=0.5)
    hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
    known = f"{', '.join([*names(), *POSITIONAL])}; and {MAPPED}<name> for DAPE over any of the methods"
    return f"pos_emb: {name} names no positional encoding.{hint} All names: {known}."
