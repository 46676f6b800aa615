"""The YAML keys: one pydantic model per subject, composed into `Config`. Imports no torch."""

from megatron.config.base import ConfigError
from megatron.config.config import Config
from megatron.config.load import load_config

__all__ = ["Config", "ConfigError", "load_config"]
