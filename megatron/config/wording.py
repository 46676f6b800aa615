"""Types and mistakes in plain words."""

import types
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from megatron.config.base import Group

UNION = (Union, types.UnionType)
CONSTRAINTS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
COUNTS = {1: "one", 2: "two", 3: "three"}


def type_words(annotation: Any) -> str:
    """`int | None` -> "a whole number or null"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in UNION:
        options = [type_words(option) for option in arguments]
        if "a number" in options:  # a whole number is one
            options = [option for option in options if option != "a whole number"]
        return " or ".join(options)
    if origin is Literal:
        return ("" if len(arguments) == 1 else "one of ") + ", ".join(show(option) for option in arguments)
    if origin is list:
        return f"a list of {_plural(arguments[0])}"
    if origin is tuple:
        return f"a list of {COUNTS[len(arguments)]} {_plural(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Group):
        return "a block of keys {...}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}[annotation]


def _plural(annotation: Any) -> str:
    if get_origin(annotation) in UNION:
        return " and ".join(
            dict.fromkeys(_plural(option) for option in get_args(annotation) if not (option is int and float in get_args(annotation)))
        )
    if get_origin(annotation) is Literal:
        return f"texts out of {', '.join(get_args(annotation))}"
    return {int: "whole numbers", float: "numbers", str: "texts", bool: "true/false"}.get(annotation, "values")


def show(value: Any) -> str:
    """A value as it would be written in YAML, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if isinstance(value, dict):
        return "a block of keys {...}"
    text = "[" + ", ".join(show(item) for item in value) + "]" if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def type_problem(annotation: Any, value: Any) -> str:
    """ "must be a number, not "6e-4"; write it without quotes"."""
    hint = _hint(annotation, value)
    return f"must be {type_words(annotation)}, not {show(value)}{f'; {hint}' if hint else ''}{'' if hint.endswith('?') else '.'}"


def _hint(annotation: Any, value: Any) -> str:
    wanted = set(_leaves(annotation))
    if isinstance(value, str):
        if bool in wanted and value.lower() in ("true", "false", "yes", "no", "on", "off"):
            return "write true or false, without quotes"
        if wanted & {int, float} and _is_number(value):
            return "write it without quotes"
        strings = [option for option in wanted if isinstance(option, str)]
        if close := get_close_matches(value, strings, 1):
            return f"did you mean {close[0]}?"
        if get_origin(annotation) is list or list in [get_origin(option) for option in get_args(annotation)]:
            return f'write ["{value}"]'
    if isinstance(value, float) and int in wanted and value.is_integer() and abs(value) < 1e18:
        return f"write {int(value)}"
    if str in wanted and isinstance(value, int | float):
        return "put it in quotes"
    return ""


def _leaves(annotation: Any) -> list[Any]:
    """The types and literal values among which a value may choose."""
    if get_origin(annotation) in UNION:
        return [leaf for option in get_args(annotation) for leaf in _leaves(option)]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [annotation]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def constraint_problem(error: dict[str, Any]) -> str | None:
    """Words for a pydantic error about a value of the right type; None for any other error."""
    context = error.get("ctx", {})
    if error["type"] in CONSTRAINTS:
        name, words = CONSTRAINTS[error["type"]]
        limit = context[name] if isinstance(context[name], int) else f"{context[name]:.10g}"
        return f"must be {words} {limit}, not {show(error['input'])}."
    if error["type"] == "finite_number":
        return "must be a finite number."
    if error["type"] == "string_too_short":
        return "must not be an empty text; write a name, or null for none."
    if error["type"] == "too_short":
        return "must not be an empty list."
    return None


def nearest(name: str, names: Sequence[str]) -> str:
    """ "; did you mean x or y?", or nothing where no name is near."""
    close = get_close_matches(name, names, 3, 0.7)
    return f"; did you mean {' or '.join(close)}?" if close else "."


def default_words(field: FieldInfo) -> str:
    """A key's default as YAML."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Group):
        return "{}"
    return show(value)
