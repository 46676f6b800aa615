"""The list of positional encodings: one line a method. Imports no torch, so that a wrong name costs nothing to find."""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from megatron.config.base import ConfigError
from megatron.config.positional import PositionalConfig

if TYPE_CHECKING:
    from megatron.positional.base import PositionalEncoding

MAPPED = "dape_"  # `dape_<name or alias>`: that method under a DAPE map over the heads


@dataclass(frozen=True)
class Method:
    """A registered method: where its class is, and what it is in one line."""

    location: str  # "module:Class"; a module without a dot is one of megatron.positional
    description: str
    options: tuple[str, ...] = ()  # the configuration keys that it reads
    aliases: tuple[str, ...] = ()

    def load(self) -> "type[PositionalEncoding]":
        """Import the module (and with it torch) and return the class."""
        module, name = self.location.split(":")
        return getattr(import_module(f"megatron.positional.{module}" if "." not in module else module), name)


ROTARY_OPTIONS = ("rotary_pct", "rotary_emb_base", "rotary_scaling")

METHODS: dict[str, Method] = {
    "none": Method("none:NoPositionalEncoding", "nothing: causal attention alone (NoPE)", aliases=("nope",)),
    "learned": Method("learned:Learned", "a learned table added to the word embeddings", ("max_position_embeddings",)),
    "sinusoidal": Method("sinusoidal:Sinusoidal", "fixed sines and cosines added to the word embeddings"),
    "rotary": Method("rotary:Rotary", "queries and keys rotated by their position (RoPE)", ROTARY_OPTIONS, ("rope",)),
    "xpos": Method("xpos:XPos", "rotary, and a decay with the distance, by pair (xPos)", (*ROTARY_OPTIONS, "xpos_scale_base")),
    "alibi": Method("alibi:Alibi", "a fixed linear bias, one slope a head (ALiBi)"),
    "t5": Method("t5:T5", "a learned bias for each bucket of distances (T5)", ("rpe_num_buckets", "rpe_max_distance"), ("rpe",)),
    "kerple_log": Method("kerple:KerpleLog", "a learned logarithmic bias, two parameters a head (KERPLE)", ("kerple_shared",), ("kerple",)),
    "kerple_log3": Method("kerple:KerpleLog3", "KERPLE's logarithmic bias with a third parameter, an exponent", ("kerple_shared",)),
    "kerple_power": Method("kerple:KerplePower", "KERPLE's power-law bias", ("kerple_shared",), ("kerple_power_ap_",)),
    "kerple_power_weight": Method(
        "kerple:KerplePowerWeight", "KERPLE's Gaussian-like kernel, a weight on the scores", ("kerple_shared",), ("kerple_power__ap",)
    ),
    "kerple_power_both": Method(
        "kerple:KerplePowerBoth", "KERPLE's weight and power-law bias", ("kerple_shared",), ("kerple_power_ap_ap",)
    ),
    "fire": Method(
        "fire:Fire",
        "a small network of the relative distance, log-scaled (FIRE)",
        ("fire_hidden_size", "fire_threshold", "fire_activation"),
    ),
    "transformer_xl": Method("transformer_xl:TransformerXL", "content and position scores of Transformer-XL", aliases=("xl_bias",)),
    "cope": Method("cope:Cope", "positions counted by gates on the scores (CoPE)", ("cope_max_position",)),
    "bipe_rotary": Method(
        "bipe:BipeRotary",
        "a learned table of places inside a segment of the text, and rotation by the segment's number (BiPE)",
        ("bipe_segment_tokens", "bipe_segment_length", *ROTARY_OPTIONS),
    ),
    "bipe_alibi": Method(
        "bipe:BipeAlibi",
        "a learned table of places inside a segment of the text, and ALiBi over the segments' numbers (BiPE)",
        ("bipe_segment_tokens", "bipe_segment_length"),
    ),
}

DAPE_OPTIONS = ("dape_kernel_size", "dape_hidden_size", "dape_form", "dape_init")

# Names of the published fork: the method under the map, and its kernel size (None: `dape_kernel_size`, or 3 where that is not given).
FORK_NAMES: dict[str, tuple[str, int | None]] = {
    "nope_c": ("none", 1),
    "alibi_c": ("alibi", 1),
    "kerple_c": ("kerple_log", 1),
    "fire_c": ("fire", 1),
    "rope_dapev1": ("rotary", 1),
    "nope_c_ffn": ("none", None),
    "alibi_dapev2": ("alibi", None),
    "kerple_dapev2": ("kerple_log", None),
    "fire_dapev2": ("fire", None),
    "rope_dapev2": ("rotary", None),
}
FORK_KERNEL_SIZE = 3


@dataclass(frozen=True)
class ResolvedMethod:
    """What a `pos_emb` stands for."""

    base: str  # a key of METHODS
    mapped: bool = False  # under a DAPE map
    fixed_kernel_size: int | None = None  # the name itself says the kernel size
    default_kernel_size: int = 1  # where `dape_kernel_size` is not given

    @property
    def name(self) -> str:
        """The canonical name: the same encoding, whichever alias led here."""
        return MAPPED + self.base if self.mapped else self.base

    @property
    def method(self) -> Method:
        """The registered base method."""
        return METHODS[self.base]

    def kernel_size(self, config: PositionalConfig) -> int:
        """The kernel of the map along the keys (1 is DAPE, odd from 3 DAPE V2)."""
        if self.fixed_kernel_size is not None:
            return self.fixed_kernel_size
        return config.dape_kernel_size if "dape_kernel_size" in config.model_fields_set else self.default_kernel_size


def resolve(name: str) -> ResolvedMethod:
    """Find the method behind a name or alias. Raises ConfigError that lists the nearest candidates and all names."""
    if name in FORK_NAMES:
        base, kernel_size = FORK_NAMES[name]
        return ResolvedMethod(base, True, kernel_size, FORK_KERNEL_SIZE)
    mapped = name.startswith(MAPPED)
    wanted = name.removeprefix(MAPPED)
    for base, method in METHODS.items():
        if wanted == base or wanted in method.aliases:
            return ResolvedMethod(base, mapped)
    raise ConfigError(_unknown(name))


def names() -> list[str]:
    """Every name and alias of a base method, and the published fork's names; each base also has its `dape_` form."""
    return [name for base, method in METHODS.items() for name in (base, *method.aliases)] + list(FORK_NAMES)


def _unknown(name: str) -> str:
    mapped = [MAPPED + each for each in names() if each not in FORK_NAMES]
    nearest = get_close_matches(name, names() + mapped, n=6, cutoff=0.5)
    hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
    known = f"{', '.join(names())}; and {MAPPED}<name> for DAPE over any of the methods"
    return f"`pos_emb: {name}` names no positional encoding.{hint} All names: {known}."
