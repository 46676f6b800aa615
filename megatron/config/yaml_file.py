"""Read one YAML file as flat entries that remember where each was written.

The YAML that configurations are written in: JSON-style with `#` comments and trailing commas, or plain. Scalars are resolved more narrowly
than YAML 1.1 does, so that nothing is misread: only true/false are booleans (not yes, no, on, off), `6e-4` is a number, `010`, `1:30` and
dates are text.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

KeyPath = tuple[str, ...]

NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
INTEGER = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$")
FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*\.?(?:[eE][-+]?[0-9]+)|[0-9][0-9_]*\.|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)
SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str"))


@dataclass(frozen=True)
class Entry:
    """One value and where it came from."""

    value: Any
    where: str  # "configs/125M.yml:12", or "--set"
    written: str  # the key as its author spelt it, dotted


Entries = dict[KeyPath, Entry]


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars described above."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}


def add_resolvers(cls: type, names: tuple[str, ...]) -> None:
    """Teach a loader or dumper which plain scalars are not text."""
    resolvers = {"null": (NULL, ["~", "n", "N", ""]), "bool": (BOOLEAN, list("tTfF")), "int": (INTEGER, list("-+0123456789"))}
    resolvers["float"] = (FLOAT, list("-+.0123456789"))
    for name in names:
        cls.add_implicit_resolver(f"tag:yaml.org,2002:{name}", *resolvers[name])


add_resolvers(Loader, ("null", "bool", "int", "float"))


def read_yaml(path: Path) -> tuple[Entries, list[str]]:
    """A file's entries and its problems, one line each. Nothing is raised: all files' problems are reported together."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return {}, [f"{path}:{line}: not valid UTF-8 (byte {error.start}); save the file as UTF-8."]
    except OSError as error:
        return {}, [f"{path}: cannot be read: {error.strerror}."]
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> tuple[Entries, list[str]]:
    """The same for text; `name` stands before line numbers."""
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, [f"{name}: the file is empty; expected `key: value` lines or {{...}}."]
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
            return {}, [f"{name}:{node.start_mark.line + 1}: the file holds {kind}; expected `key: value` lines or {{...}}."]
        reader = _Reader(loader, name)
        reader.read_mapping(node, (), "")
        return reader.entries, reader.problems
    except yaml.YAMLError as error:
        return {}, [f"{name}{_yaml_problem(error)}"]
    except RecursionError:
        return {}, [f"{name}: nested too deeply."]


def parse_value(text: str) -> Any:
    """The value of a `--set key=value`: any YAML value; nested mappings become dicts. Raises ValueError with what is wrong."""
    entries, problems = parse_yaml(f"value: {text}" if not text.lstrip().startswith("#") else f"value: '{text}'", "")
    if not problems and all(path[0] == "value" for path in entries):
        return unflatten({path: entry.value for path, entry in entries.items()})["value"]
    raise ValueError(problems[0].split(": ", 1)[-1] if problems else "not one YAML value")


def unflatten(values: dict[KeyPath, Any]) -> dict[str, Any]:
    """{("a", "b"): 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        inner = tree
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return tree


def flatten(path: KeyPath, value: Any) -> dict[KeyPath, Any]:
    """The reverse of `unflatten`, below `path`; an empty mapping stays a value."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {leaf: inner for key, below in value.items() for leaf, inner in flatten((*path, key), below).items()}


def normalise(key: str) -> str:
    """Dashes and underscores are the same in keys."""
    return key.replace("-", "_")


class _Reader:
    """Walks a file's nodes."""

    def __init__(self, loader: Loader, name: str) -> None:
        self.loader, self.name = loader, name
        self.entries: Entries = {}
        self.problems: list[str] = []
        self._open: list[yaml.Node] = []  # nodes being read, against aliases that contain themselves

    def read_mapping(self, node: yaml.MappingNode, path: KeyPath, written: str) -> None:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not (isinstance(key_node, yaml.ScalarNode) and key_node.tag.endswith(":str") and key_node.value.strip()):
                self._problem(
                    key_node, f"a key must be a name, not {key_node.value if isinstance(key_node, yaml.ScalarNode) else 'a block'!r}."
                )
                continue
            key, spelt = normalise(key_node.value), f"{written}{key_node.value}"
            if key in lines:
                self._problem(key_node, f"{spelt} is there twice: first in line {lines[key]}; keep one.")
                continue
            lines[key] = line
            self._read(value_node, (*path, key), spelt, line)

    def _read(self, node: yaml.Node, path: KeyPath, spelt: str, line: int) -> None:
        if isinstance(node, yaml.MappingNode) and node.value:
            if any(node is outer for outer in self._open):
                self._problem(node, f"{spelt} contains itself.")
                return
            self._open.append(node)
            self.read_mapping(node, path, f"{spelt}.")
            self._open.pop()
        else:
            self.entries[path] = Entry(self._value(node), f"{self.name}:{line}", spelt)

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            if any(node is outer for outer in self._open):
                self._problem(node, "a list contains itself.")
                return []
            self._open.append(node)
            values = [self._value(item) for item in node.value]
            self._open.pop()
            return values
        if isinstance(node, yaml.MappingNode):
            return {normalise(str(key.value)): self._value(value) for key, value in node.value}
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> str | int | float | bool | None:
        """Explicit tags may choose among these types and no others."""
        value, fault = None, f"the tag {node.tag} is not supported" if node.tag not in SCALAR_TAGS else ""
        try:
            value = None if fault else self.loader.construct_object(node)
            if isinstance(value, str):
                value.encode()
        except UnicodeEncodeError:
            fault = "half of a surrogate pair is not a character"
        except ValueError:
            fault = f"{node.value!r} is not a value of type {node.tag.rpartition(':')[2]}"
        if fault:
            raise yaml.constructor.ConstructorError(problem=fault, problem_mark=node.start_mark)
        return value

    def _problem(self, node: yaml.Node, text: str) -> None:
        self.problems.append(f"{self.name}:{node.start_mark.line + 1}: {text}")


def _yaml_problem(error: yaml.YAMLError) -> str:
    """`:line: what` of PyYAML's exception."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if "'\\t'" in what:
        what += "; indent with spaces instead of tabs"
    line = f":{mark.line + 1}" if mark else ""
    if isinstance(error, yaml.reader.ReaderError):
        what = f"character U+{error.character:04X} is not allowed" if isinstance(error.character, int) else what
    return f"{line}: not valid YAML: {what}."
