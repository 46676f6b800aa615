"""How methods are written in tables and drawn in figures: the papers' names, a colour a base method, a line style for DAPE over it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron.config.methods import METHODS, ResolvedMethod

NAMES = {
    "none": "NoPE",
    "learned": "Learned",
    "sinusoidal": "Sinusoidal",
    "rotary": "RoPE",
    "xpos": "xPos",
    "alibi": "ALiBi",
    "t5": "T5",
    "kerple_log": "KERPLE-log",
    "kerple_log3": "KERPLE-log3",
    "kerple_power": "KERPLE-power",
    "kerple_power_weight": "KERPLE-power-weight",
    "kerple_power_both": "KERPLE-power-both",
    "fire": "FIRE",
    "transformer_xl": "Transformer-XL",
    "cope": "CoPE",
    "bipe_rotary": "BiPE-RoPE",
    "bipe_alibi": "BiPE-ALiBi",
}
COLOURS = {  # the ten that are compared most are far apart; the others are lighter or darker relatives of a near method
    "kerple_log": "#1f77b4",
    "alibi": "#ff7f0e",
    "rotary": "#d62728",
    "fire": "#2ca02c",
    "t5": "#9467bd",
    "none": "#7f7f7f",
    "cope": "#e377c2",
    "transformer_xl": "#8c564b",
    "xpos": "#bcbd22",
    "sinusoidal": "#17becf",
    "learned": "#000000",
    "kerple_log3": "#00429d",
    "kerple_power": "#73b3f0",
    "kerple_power_weight": "#005f73",
    "kerple_power_both": "#94d2bd",
    "bipe_rotary": "#ff9896",
    "bipe_alibi": "#b35900",
}
MARKERS = "osD^vP*X<>p"
DEFAULT_FORM = "s+b+f(s,b)"


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    line: str  # "-", under a DAPE map "--", under one with a kernel (V2) ":"
    marker: str


def describe(encoding: ResolvedMethod, settings: dict[str, Any]) -> str:
    """The papers' name of a method, and what departs from the papers' form of it."""
    base, kernel = NAMES.get(encoding.base, encoding.base), settings.get("dape_kernel_size", 1)
    name = base if not encoding.mapped else f"DAPE-{base}" if kernel == 1 else f"DAPE V2-{base}"
    return ", ".join([name, *([f"kernel {kernel}"] if encoding.mapped and kernel != 1 else []), *departures(encoding, settings)])


def departures(encoding: ResolvedMethod, settings: dict[str, Any]) -> list[str]:
    """What makes a method another one than the papers': none for the papers' own."""
    form = settings.get("dape_form", DEFAULT_FORM)
    scaling = settings.get("rotary_scaling.type", "none")
    window, positions = settings.get("sliding_window_width"), settings.get("position_sampling", "sequential")
    found = {
        form: encoding.mapped and form != DEFAULT_FORM,
        "information leakage": encoding.mapped and settings.get("dape_information_leakage"),
        f"{scaling} scaling": encoding.reads("rotary_scaling") and scaling != "none",
        f"{positions} positions": positions != "sequential",
        f"window {window}": window is not None,
    }
    return [text for text, there in found.items() if there]


def styles(methods: Sequence[tuple[str, ResolvedMethod, int]]) -> dict[str, Style]:
    """A style for each (label, encoding, kernel). Colour and marker are the base method's, the line is the map's; where all is the same,
    markers differ."""
    seen, found, bases = Counter(), {}, list(METHODS)
    for label, encoding, kernel in methods:
        if label not in found:
            line = "-" if not encoding.mapped else "--" if kernel == 1 else ":"
            place = bases.index(encoding.base) + seen[encoding.base, line]
            found[label] = Style(COLOURS.get(encoding.base, "#444444"), line, MARKERS[place % len(MARKERS)])
            seen[encoding.base, line] += 1
    return found
