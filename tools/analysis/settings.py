"""The settings of a run, from its config.yml: which make it another method, which make its perplexity another measure, which do neither."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from megatron.config.base import ConfigError
from megatron.config.config import Config
from megatron.config.methods import DAPE_OPTIONS, METHODS, ResolvedMethod, resolve
from megatron.errors import UserError
from tools.analysis.records import is_whole

Settings = dict[str, Any]  # "optimizer.params.lr" -> its value

DECIDING = ("model", "positional", "precision", "tokenizer", "data", "optimizer", "training")  # groups that decide what is learnt
SHOWN = (*DECIDING, "parallel", "evaluation")
WITHOUT_EFFECT = {  # keys of deciding groups that a result does not depend on, but for rounding
    "attention_backend", "data_impl", "mmap_warmup", "num_workers", "zero_optimization", "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps", "checkpoint_activations", "checkpoint_num_layers", "exit_interval", "exit_duration_in_mins",
}  # fmt: skip
TEXT = (  # what a perplexity a token is measured on; and `<split>_data_paths`, `<split>_data_weights`
    "tokenizer_type", "vocab_file", "merge_file", "data_path", "split", "weight_by_num_documents", "weighted_sampler_alpha",
    "eod_mask_loss",
)  # fmt: skip


def read_settings(path: Path) -> Settings:
    """All keys of a config.yml, nested ones with dots; those that an older file lacks have their defaults. UserError where it is none."""
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Give a run's log folder (log_dir); the run writes its config.yml there.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(keys, dict) or not isinstance(keys.get("pos_emb"), str):
        raise UserError(f"{path}: is no configuration of a run: it has no pos_emb.")
    if not (is_whole(length := keys.get("seq_length")) and length > 0):
        raise UserError(f"{path}: seq_length is {length!r}, not a number of tokens (at least 1).")
    return flatten(defaults() | {str(key): value for key, value in keys.items()})


def read_method(settings: Settings, path: Path) -> ResolvedMethod:
    """The positional encoding that `pos_emb` names. UserError where this version knows none of that name."""
    try:
        return resolve(settings["pos_emb"])
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from error


def identity(settings: Settings, method: ResolvedMethod) -> Settings:
    """What two runs have in common that are seeds of one method: all settings that decide what is learnt, but for the seed.

    Without the options of other positional encodings, which this one does not read.
    """
    options = {option for each in METHODS.values() for option in each.options} | {*DAPE_OPTIONS}
    unread = options - {*method.method.options, *(DAPE_OPTIONS if method.mapped else ())}
    kept = keys_of(DECIDING) - WITHOUT_EFFECT - unread - {"seed"}
    return {key: value for key, value in settings.items() if key.split(".")[0] in kept} | {"pos_emb": method.name}


def text(settings: Settings, split: str) -> Settings:
    """The settings that decide which tokens an evaluation of `split` is about. Perplexities on other tokens cannot be compared."""
    return {key: settings.get(key) for key in (*TEXT, f"{split}_data_paths", f"{split}_data_weights")}


def differing(settings: Sequence[Settings]) -> list[str]:
    """The keys that have not one value in all, in the first's order."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def shown(settings: Settings) -> Settings:
    """The settings worth showing: not those of folders, logging, launch and generation."""
    kept = keys_of(SHOWN)
    return {key: value for key, value in settings.items() if key.split(".")[0] in kept}


def keys_of(groups: Sequence[str]) -> set[str]:
    """The top-level keys of these groups."""
    return {key for group in groups for key in Config.model_fields[group].annotation.model_fields}


def defaults() -> Settings:
    """Every top-level key that has a default."""
    fields = [field for group in SHOWN for field in Config.model_fields[group].annotation.model_fields.items()]
    found = {key: field.get_default(call_default_factory=True) for key, field in fields if not field.is_required()}
    return {key: value.model_dump(mode="json") if isinstance(value, BaseModel) else value for key, value in found.items()}


def flatten(keys: dict[str, Any], prefix: str = "") -> Settings:
    """Nested keys with dots; lists stay whole."""
    flat = {}
    for key, value in keys.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
