"""The list of methods for people: a table for the terminal and a page of documentation. Imports no torch."""

from collections.abc import Iterator

from pydantic.fields import FieldInfo

from megatron.config.aliases import DEFAULT_KERNEL, POSITIONAL
from megatron.config.base import Group
from megatron.config.methods import DAPE_OPTIONS, MAPPED, METHODS
from megatron.config.model import ModelConfig
from megatron.config.positional import PositionalConfig

HEADER = ("pos_emb", "also", "keys", "what it is")
DAPE = "a learned map over the heads of the scores and the bias (DAPE; odd kernels from 3: DAPE V2), over any method above"


def rows() -> list[tuple[str, str, str, str]]:
    """One row per method (HEADER names the columns), then DAPE."""
    methods = [(name, ", ".join(each.aliases), ", ".join(each.options), each.description) for name, each in METHODS.items()]
    return [*methods, (f"{MAPPED}<name>", "", ", ".join(DAPE_OPTIONS), DAPE)]


def fork_names() -> list[tuple[str, str]]:
    """The published fork's names: (theirs, what it stands for here)."""
    sizes = {None: f"`dape_kernel_size`, {DEFAULT_KERNEL} where not given"}
    return [(theirs, f"{ours}, kernel {sizes.get(size, size)}") for theirs, (ours, size) in POSITIONAL.items()]


def table() -> str:
    """Plain text: the methods with their keys, and the fork's names."""
    lines = [HEADER, *rows()]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    text = ["  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip() for line in lines]
    fork = [f"{theirs.ljust(widths[0])}  {ours.replace('`', '')}" for theirs, ours in fork_names()]
    return "\n".join([*text, "", "Names of the published fork:", *fork]) + "\n"


def page() -> str:
    """The same as Markdown, with every key explained."""
    return "\n".join(
        [
            "# Positional encodings",
            "",
            "Written by `python -m megatron.positional --markdown`; do not edit.",
            "",
            *_markdown(HEADER, [(f"`{name}`", _code(aliases), _code(keys), what) for name, aliases, keys, what in rows()]),
            "",
            "## Keys",
            "",
            *_markdown(("key", "default", "meaning"), _keys()),
            "",
            "## Names of the published fork",
            "",
            "Accepted as they stand in its YAML files.",
            "",
            *_markdown(("theirs", "ours"), [(f"`{theirs}`", ours) for theirs, ours in fork_names()]),
            "",
        ]
    )


def _keys() -> list[tuple[str, str, str]]:
    """Every key that a method or the map reads: name, default, description."""
    read = dict.fromkeys(key for method in METHODS.values() for key in method.options) | dict.fromkeys(DAPE_OPTIONS)
    fields = {**ModelConfig.model_fields, **PositionalConfig.model_fields}
    return [row for key in read for row in _key(key, fields[key])]


def _key(name: str, field: FieldInfo) -> Iterator[tuple[str, str, str]]:
    """A key's row, or those of the keys of a block."""
    if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
        for inner, each in field.annotation.model_fields.items():
            yield from _key(f"{name}.{inner}", each)
        return
    yield f"`{name}`", "" if field.default is None else f"`{field.default}`", field.description


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", ")) if names else ""


def _markdown(header: tuple[str, ...], body: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *body)]
