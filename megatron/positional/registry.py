"""The list of positional encodings: one line a method. Imports no torch, so that a wrong name costs nothing to find."""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron.positional.base import PositionalEncoding


@dataclass(frozen=True)
class Method:
    """A registered method: where its class is, and what it is in one line."""

    location: str  # "module:Class", relative to megatron.positional
    description: str
    options: tuple[str, ...] = ()  # the configuration keys that it reads
    aliases: tuple[str, ...] = ()

    def load(self) -> "type[PositionalEncoding]":
        """Import the module (and with it torch) and return the class."""
        module, name = self.location.split(":")
        return getattr(import_module(f"megatron.positional.{module}" if "." not in module else module), name)


METHODS: dict[str, Method] = {
    "none": Method("none:NoPositionalEncoding", "nothing: causal attention alone (NoPE)", aliases=("nope",)),
    "learned": Method("learned:Learned", "a learned table added to the word embeddings", ("max_position_embeddings",)),
    "sinusoidal": Method("sinusoidal:Sinusoidal", "fixed sines and cosines added to the word embeddings"),
    "rotary": Method("rotary:Rotary", "queries and keys rotated by their position (RoPE)", ("rotary_pct", "rotary_emb_base"), ("rope",)),
    "alibi": Method("alibi:Alibi", "a fixed linear bias, one slope a head (ALiBi)"),
    "kerple_log": Method("kerple:KerpleLog", "a learned logarithmic bias, two parameters a head (KERPLE)", ("kerple_shared",), ("kerple",)),
}
