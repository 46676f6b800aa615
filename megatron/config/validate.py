"""Sort entries into their groups, check them, and say what is wrong in plain words."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from megatron.config.aliases import COMPOUND, KEYS
from megatron.config.base import Group
from megatron.config.config import Config
from megatron.config.refused import IDLE, REFUSED
from megatron.config.wording import constraint_problem, nearest, show, type_problem
from megatron.config.yaml_file import Entries, Entry, KeyPath, unflatten

GROUP_OF: dict[str, str] = {key: group for group, field in Config.model_fields.items() for key in field.annotation.model_fields}


def separate_foreign_keys(entries: Entries) -> tuple[Entries, list[str], list[str]]:
    """(our entries, notices, problems): GPT-NeoX's other keys are noted or refused, unknown ones refused with the nearest names."""
    ours: Entries = {}
    foreign: dict[str, Entries] = {}
    notices, problems = [], []
    for path, entry in entries.items():
        top = path[0]
        if top in IDLE or top in REFUSED:
            foreign.setdefault(top, {})[path[1:]] = entry
        elif (unknown := _unknown(path)) is None:
            ours[path] = entry
        elif "." in unknown[0]:
            problems.append(f"{entry.where}: {entry.written}: a key holds no dots here; nest it: {_nest(unknown[0])}.")
        else:
            problems.append(f"{entry.where}: unknown key {entry.written}{nearest(*unknown)}")
    for name, below in foreign.items():
        first = next(iter(below.values()))
        value = first.value if () in below else unflatten({path: entry.value for path, entry in below.items()})
        verdict, reason = IDLE[name].judge(value) if name in IDLE else ("refused", REFUSED[name])
        if verdict == "refused":
            problems.append(f"{first.where}: {name}{'' if name in REFUSED else f': {show(value)}'} is not supported: {reason}")
        elif verdict:
            notices.append(f"{first.where}: {name} has no effect: {reason}.")
    return ours, notices, problems


def _nest(key: str) -> str:
    """ "a.b" -> "a: {b: ...}"."""
    *blocks, last = key.split(".")
    return "".join(f"{block}: {{" for block in blocks) + f"{last}: ..." + "}" * len(blocks)


def _unknown(path: KeyPath) -> tuple[str, list[str]] | None:
    """(unknown part, the names that could stand there), or None for a key that exists."""
    if path[0] not in GROUP_OF:
        return path[0], [*GROUP_OF, *(name for name in [*KEYS, *COMPOUND] if "." not in name)]
    model = Config.model_fields[GROUP_OF[path[0]]].annotation
    for part in path:
        if part not in model.model_fields:
            return part, list(model.model_fields)
        model = model.model_fields[part].annotation
        if not _is_group(model):
            return None
    return None


def validate(entries: Entries, files: str, report_missing: bool) -> tuple[dict[str, Group], list[str]]:
    """Each group's model, and the problems in plain words. `files` names the sources; missing keys are a problem only where asked for."""
    tree = unflatten({path: entry.value for path, entry in entries.items()})
    groups, problems = {}, []
    for name, field in Config.model_fields.items():
        model = field.annotation
        try:
            # JSON is strict in the way that YAML needs: 1 is a number, true is not, lists become tuples, blocks models
            groups[name] = model.model_validate_json(json.dumps({key: tree[key] for key in model.model_fields if key in tree}))
        except ValidationError as error:
            problems += _describe(model, error, tree, entries, files, report_missing)
            continue
        for path, only, value in _only_values(groups[name]):
            if value != only:
                problems.append(f"{_place(entries, path)}{'.'.join(path)}: only {show(only)} is supported.")
    return groups, problems


def _describe(model: type[Group], error: ValidationError, tree: dict, entries: Entries, files: str, report_missing: bool) -> Iterator[str]:
    """pydantic's errors, one line for each key."""
    by_key: dict[KeyPath, list[dict[str, Any]]] = {}
    for item in error.errors(include_url=False):
        by_key.setdefault(_key_path(model, item["loc"]), []).append(item)
    for path, items in by_key.items():
        field = _field(model, path)
        value = _value(tree, path)
        if any(item["type"] == "missing" for item in items) and value is ...:
            if report_missing:
                yield f"{files}: the key {'.'.join(path)} is missing: {field.description}"
            continue
        words = next(filter(None, map(constraint_problem, items)), None) or type_problem(field.annotation, value)
        yield f"{_place(entries, path)}{_written(entries, path)}: {words}"


def _key_path(model: type[Group], location: tuple[int | str, ...]) -> KeyPath:
    """The part of a pydantic location that names keys (list positions and union branches follow)."""
    path: list[str] = []
    for part in location:
        if not (_is_group(model) and part in model.model_fields):
            break
        path.append(str(part))
        model = model.model_fields[part].annotation
    return tuple(path)


def _field(model: type[Group], path: KeyPath) -> FieldInfo:
    for part in path[:-1]:
        model = model.model_fields[part].annotation
    return model.model_fields[path[-1]]


def _value(tree: dict, path: KeyPath) -> Any:
    """The value given for a key, or ... where there is none."""
    value: Any = tree
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return ...
        value = value[part]
    return value


def _only_values(group: Group, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, Any]]:
    """(key, the only value that is supported, the given value)."""
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        if isinstance(value, Group):
            yield from _only_values(value, (*path, name))
        elif isinstance(field.json_schema_extra, dict) and "only" in field.json_schema_extra:
            yield (*path, name), field.json_schema_extra["only"], value


def _entry(entries: Entries, path: KeyPath) -> Entry | None:
    """What was written for a key, for something below it, or for a block that holds it."""
    below = (entry for other, entry in entries.items() if other[: len(path)] == path)
    above = (entries[path[:length]] for length in range(len(path) - 1, 0, -1) if path[:length] in entries)
    return next(below, None) or next(above, None)


def _place(entries: Entries, path: KeyPath) -> str:
    entry = _entry(entries, path)
    return f"{entry.where}: " if entry else ""


def _written(entries: Entries, path: KeyPath) -> str:
    return entries[path].written if path in entries else ".".join(path)


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Group)
