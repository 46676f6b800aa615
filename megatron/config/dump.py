"""A configuration as YAML that starts the same run again."""

import yaml

from megatron.config.config import Config
from megatron.config.yaml_file import add_resolvers


class Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; also quotes text that our loader would read as a number."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


add_resolvers(Dumper, ("float", "int"))


def dump_yaml(config: Config) -> str:
    """Flat YAML with every key, a comment before each group. Loaded again it gives an equal Config; floats are exact."""
    groups = config.model_dump(mode="json")
    return "\n".join(
        f"# {name}\n{yaml.dump(keys, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)}" for name, keys in groups.items()
    )
