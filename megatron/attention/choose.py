"""Which attention backend serves a model: chosen once, when the model is built, or refused by name. Imports torch only to hand one out."""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Literal

from megatron.config.base import ConfigError

Backend = Literal["auto", "eager", "sdpa"]
Attention = Callable  # (q, k, v, positional, query_positions, key_positions, mask, dropout_probability) -> [b, h, q, d]; see eager.py

LOCATIONS = {"eager": "megatron.attention.eager:eager_attention", "sdpa": "megatron.attention.sdpa:sdpa_attention"}
BEYOND_A_BIAS = {
    "weight": "multiplies the scores",
    "scores": "computes scores of its own",
    "adjust": "changes the scores by their content",
}


def check_backend(name: Backend, method: str, acts_on: Collection[str], has_score_map: bool = False) -> None:
    """Refuse a backend that cannot honour an encoding.

    `method` is the encoding's name for the message; `acts_on` and `has_score_map` are what it says of itself (positional/base.py).
    Raises ConfigError naming backend, method and the way out.
    """
    reason = _obstacle(acts_on, has_score_map)
    if name == "sdpa" and reason:
        raise ConfigError(f"attention_backend: sdpa cannot do pos_emb {method!r}, which {reason}. Use `auto` or `eager`.")


def choose_backend(name: Backend, method: str, acts_on: Collection[str], has_score_map: bool = False) -> tuple[Attention, str]:
    """(the attention function, one sentence for the log that says which it is and why). Raises ConfigError like `check_backend`."""
    check_backend(name, method, acts_on, has_score_map)
    if name != "auto":
        return _load(name, acts_on), f"{name} attention, as configured"
    reason = _obstacle(acts_on, has_score_map)
    if reason:
        return _load("eager", acts_on), f"eager attention: pos_emb {method!r} {reason}, which sdpa cannot"
    return _load("sdpa", acts_on), f"sdpa attention: it can do all that pos_emb {method!r} asks"


def _obstacle(acts_on: Collection[str], has_score_map: bool) -> str | None:
    """What an encoding does that a fused kernel has no place for, or None."""
    if has_score_map:
        return "maps the scores over the heads"
    return next((reason for hook, reason in BEYOND_A_BIAS.items() if hook in acts_on), None)


def _load(name: str, acts_on: Collection[str]) -> Attention:
    """The function; where it needs memory for all pairs of positions, evaluation runs it in blocks of rows."""
    module, function = LOCATIONS[name].split(":")
    attend = getattr(import_module(module), function)
    if name == "eager" or "bias" in acts_on:
        return import_module("megatron.attention.rows").in_row_blocks(attend)
    return attend
