"""Which attention backend serves a model: chosen once, when the model is built, or refused by name. Imports torch only to hand one out."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from megatron.config.base import ConfigError

Backend = Literal["auto", "eager", "sdpa", "flex", "flash", "blockwise"]
Attention = Callable  # (q, k, v, positional, query_positions, key_positions, mask, dropout_probability) -> [b, h, q, d]; see eager.py

BEYOND_A_BIAS = {
    "weight": "multiplies the scores",
    "scores": "computes scores of its own",
    "adjust": "changes the scores by their content",
}


@dataclass(frozen=True)
class Needs:
    """What a model asks of its attention. `method` is the encoding's name in messages; the rest is what it says of itself (base.py)."""

    method: str
    acts_on: frozenset[str] = frozenset()
    has_score_map: bool = False
    translation_invariant: bool = True
    window: bool = False
    leaks: bool = False  # its map reads the scores of later keys as well

    def beyond_a_bias(self) -> str | None:
        """What a kernel that adds a bias to the scores has no place for."""
        if self.has_score_map:
            return f"pos_emb {self.method!r}, which maps the scores over the heads"
        found = next((reason for hook, reason in BEYOND_A_BIAS.items() if hook in self.acts_on), None)
        return found and f"pos_emb {self.method!r}, which {found}"

    def beyond_nothing(self) -> str | None:
        """What a kernel without a bias has no place for."""
        return self.beyond_a_bias() or (f"pos_emb {self.method!r}, which adds a bias to the scores" if "bias" in self.acts_on else None)

    def beyond_a_distance_bias(self) -> str | None:
        """What a kernel that looks a bias up by distance has no place for."""
        other = "bias" in self.acts_on and not self.translation_invariant
        return self.beyond_a_bias() or (f"pos_emb {self.method!r}, whose bias is no function of the distance" if other else None)

    def beyond_a_triangle(self) -> str | None:
        """What a kernel that only knows the causal mask has no place for."""
        return self.beyond_nothing() or ("sliding_window_width" if self.window else None)


@dataclass(frozen=True)
class Kernel:
    """A backend: where its function is, and what it cannot do (in words, or None)."""

    location: str
    limit: Callable[[Needs], str | None] = lambda needs: None
    whole_square: bool = False  # computes the scores of later keys, too

    def obstacle(self, needs: Needs) -> str | None:
        """What of `needs` it cannot do."""
        if needs.leaks and not self.whole_square:
            return "dape_information_leakage, which needs the scores of later keys"
        return self.limit(needs)


KERNELS = {
    "eager": Kernel("eager:eager_attention", whole_square=True),
    "sdpa": Kernel("sdpa:sdpa_attention", Needs.beyond_a_bias),
    "flex": Kernel("flex:flex_backend", Needs.beyond_a_distance_bias),
    "flash": Kernel("flash:flash_attention", Needs.beyond_a_triangle),
    "blockwise": Kernel("blockwise:blockwise_attention"),
}


def check_backend(name: Backend, needs: Needs, place: str = "") -> None:
    """Refuse a backend that cannot honour what is asked. Raises ConfigError naming backend, cause and the way out; `place` begins it."""
    if name == "auto":
        return
    obstacle = KERNELS[name].obstacle(needs)
    if obstacle:
        able = [other for other, kernel in KERNELS.items() if kernel.obstacle(needs) is None]
        raise ConfigError(f"{place}attention_backend: {name} cannot do {obstacle}. Use `auto`, or one of {', '.join(able)}.")


def choose_backend(name: Backend, needs: Needs, place: str = "") -> tuple[Attention, str]:
    """(the attention function, one sentence for the log that says which it is and why).

    Raises ConfigError like `check_backend`, and where a backend cannot run on this machine.
    """
    check_backend(name, needs, place)
    if name != "auto":
        return _load(name), f"{name}, as configured"
    if needs.leaks:
        return _load("eager"), "eager, for dape_information_leakage: the one backend that computes the scores of later keys"
    beyond = needs.beyond_nothing()
    if beyond:
        return _load("blockwise"), f"blockwise, for {beyond}: exact in blocks of rows, memory linear in the length"
    if needs.window:
        return _load("blockwise"), "blockwise, for sliding_window_width: keys outside the window are left out"
    return _load("sdpa"), f"sdpa: pos_emb {needs.method!r} asks nothing that torch's fused kernels cannot do"


def _load(name: str) -> Attention:
    """The function; where it needs memory for all pairs of positions, evaluation runs it in blocks of rows."""
    module, function = KERNELS[name].location.split(":")
    attend = getattr(import_module(f"megatron.attention.{module}"), function)
    if name in ("eager", "sdpa"):
        return import_module("megatron.attention.rows").in_row_blocks(attend)
    return attend() if name == "flex" else attend
