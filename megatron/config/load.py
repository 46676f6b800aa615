"""Read YAML files, merge them, and build a checked `Config`."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from megatron.config.base import ConfigError
from megatron.config.config import Config


def load_config(paths: Sequence[str | Path], overrides: Sequence[str] = (), directory: str | None = None) -> Config:
    """Merge the files and `key=value` overrides into a Config."""
    flat: dict = {}
    for path in paths:
        path = Path(directory or "", path)
        path = path if path.exists() else path.with_name(path.name + ".yml")
        if not path.exists():
            raise ConfigError(f"{path}: no such file")
        flat |= {key.replace("-", "_"): value for key, value in yaml.safe_load(path.read_text()).items()}
    for override in overrides:
        name, _, value = override.partition("=")
        inner = flat
        *outer, name = name.replace("-", "_").split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = yaml.safe_load(value)
    groups: dict = {}
    for group, field in Config.model_fields.items():
        groups[group] = {key: flat.pop(key) for key in field.annotation.model_fields if key in flat}
    if flat:
        raise ConfigError(f"unknown keys: {', '.join(flat)}")
    import json

    return Config.model_validate_json(json.dumps(groups))
