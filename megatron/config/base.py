"""The base class of every group of configuration keys, and the error that a bad configuration raises."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from megatron.errors import UserError


class ConfigError(UserError):
    """A user's mistake in a configuration: says what is wrong, where (file, key, line) and what to do."""


class Group(BaseModel):
    """One subject's keys. Immutable; unknown keys and wrong types are errors, never converted by guesswork."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def key(default: Any, description: str, **constraints: Any) -> Any:
    """A configuration key: its default, its one-line documentation and pydantic constraints (`ge=`, `le=`, ...)."""
    if "default_factory" in constraints:
        return Field(description=description, **constraints)
    return Field(default, description=description, **constraints)
