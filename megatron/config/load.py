"""Read YAML files, merge them, and build a checked `Config`. Every problem of the files is found and reported at once."""

from collections.abc import Sequence
from pathlib import Path

from megatron.config.aliases import same, translate, translate_positional
from megatron.config.base import ConfigError
from megatron.config.config import Config, Origins
from megatron.config.find import find_file
from megatron.config.validate import separate_foreign_keys, validate
from megatron.config.wording import show
from megatron.config.yaml_file import Entries, Entry, KeyPath, flatten, normalise, parse_value, read_yaml

OVERRIDE = "--set"


def load_config(paths: Sequence[str | Path], overrides: Sequence[str] = (), directory: str | None = None) -> Config:
    """Merge YAML files and `key=value` overrides into a Config.

    Files lie in `directory` where one is given (or, where that has no such file, in one of its sub-folders); `.yml` may be left out.
    A key may be in several files if its value is the same. Overrides win; `a.b=1` reaches into blocks; values are YAML.
    Raises ConfigError naming file, line and key of everything that is wrong.
    """
    if not paths and not overrides:
        raise ConfigError("no configuration file was given.")
    entries, problems, conflicts = _read_files(paths, directory)
    readable = not problems
    problems += _apply(entries, overrides, conflicts)
    problems += conflicts.values()
    entries, more = translate_positional(entries)
    problems += more
    entries, notices, more = separate_foreign_keys(entries)
    problems += more
    groups, more = validate(entries, ", ".join(map(str, paths)) or OVERRIDE, report_missing=readable)
    problems += more
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    config = Config(**groups)
    config._origins = Origins({".".join(path): entry.where for path, entry in entries.items()}, tuple(notices))
    return config


def _read_files(paths: Sequence[str | Path], directory: str | None) -> tuple[Entries, list[str], dict[KeyPath, str]]:
    """(all files' entries merged, problems, problems of keys that have two values)."""
    merged: Entries = {}
    problems: list[str] = []
    conflicts: dict[KeyPath, str] = {}
    for path in paths:
        try:
            file = find_file(path, directory)
        except ConfigError as error:
            problems.append(str(error))
            continue
        entries, more = read_yaml(file)
        problems += more
        entries, more = translate(entries)
        problems += more
        conflicts |= _merge(merged, entries)
    return merged, problems, conflicts


def _merge(merged: Entries, entries: Entries) -> dict[KeyPath, str]:
    """Add `entries` to `merged`; two values for one key are a problem that names both places."""
    conflicts = {}
    for path, entry in entries.items():
        before = merged.get(path) or _clash(merged, path)
        if before is None:
            merged[path] = entry
        elif path not in merged or not same(merged[path].value, entry.value):
            values = f"{show(before.value)} and {show(entry.value)}" if path in merged else "a value and a block of keys"
            conflicts[path] = (
                f"{before.where} and {entry.where}: {entry.written} has two values, {values}; "
                f"keep one, or decide with --set {'.'.join(path)}=..."
            )
    return conflicts


def _clash(entries: Entries, path: KeyPath) -> Entry | None:
    """An entry above or below `path`: one file has a value where another has a block."""
    return next((entry for other, entry in entries.items() if _nested(other, path) and other != path and entry.value != {}), None)


def _nested(one: KeyPath, other: KeyPath) -> bool:
    """Whether one is the other, or holds it, or lies in it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _apply(entries: Entries, overrides: Sequence[str], conflicts: dict[KeyPath, str]) -> list[str]:
    """Let `key=value` words win over the files and settle their conflicts."""
    problems = []
    for override in overrides:
        name, equals, text = override.partition("=")
        path = tuple(normalise(part) for part in name.strip().split("."))
        if not equals or not all(path):
            problems.append(f"{OVERRIDE} {override}: must be key=value.")
            continue
        try:
            value = parse_value(text)
        except ValueError as error:
            problems.append(f"{OVERRIDE} {override}: {error}")
            continue
        leaves, more = translate({leaf: Entry(inner, OVERRIDE, ".".join(leaf)) for leaf, inner in flatten(path, value).items()})
        problems += more
        for replaced in [*leaves, path] if isinstance(value, dict) else leaves:  # a whole block replaces the block
            for known in (entries, conflicts):
                for other in [other for other in known if _nested(other, replaced)]:
                    del known[other]
        entries.update(leaves)
    return problems
