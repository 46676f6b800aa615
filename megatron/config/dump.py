"""A configuration as flat YAML."""

import yaml

from megatron.config.config import Config


def dump_yaml(config: Config) -> str:
    """Flat YAML that loads as the same Config."""
    flat: dict = {}
    for group in config.model_dump(mode="json").values():
        flat |= group
    return yaml.safe_dump(flat, sort_keys=False)
