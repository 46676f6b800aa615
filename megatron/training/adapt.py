"""A DAPE map for a model trained without one: that the checkpoint holds this model, apart from the map."""

from pathlib import Path

from megatron.config import Config, ConfigError
from megatron.config.checkpoint import CheckpointConfig
from megatron.config.methods import DAPE_OPTIONS, resolve
from megatron.training.agreement import SIZES, WITHOUT_EFFECT, model_differences
from megatron.training.checkpoint import saved_steps
from megatron.training.weights import read_configuration

MAY_DIFFER = WITHOUT_EFFECT | SIZES | {"pos_emb", "fire_activation", *DAPE_OPTIONS}


def has_adapted(keys: CheckpointConfig) -> bool:
    """Whether an adapting run has saved: its own checkpoints, maps included, then come before those of `load`."""
    return keys.adapt and keys.save is not None and bool(saved_steps(Path(keys.save)))


def check_adapts(config: Config, folder: Path) -> None:
    """Weights of another method may have the same names and shapes: compare the configurations. Raises ConfigError with what differs."""
    saved = read_configuration(folder)
    before, now = resolve(saved["positional"]["pos_emb"]), resolve(config.positional.pos_emb)
    if before.mapped:
        raise ConfigError(f"adapt: {folder} ({before.name}) has a DAPE map already; finetune: true goes on from its weights.")
    if before.base != now.base:
        raise ConfigError(
            f"adapt: {folder} was trained with pos_emb: {before.name}; write pos_emb: dape_{before.name}, or load a model with {now.base}."
        )
    differing = list(model_differences(config, saved, MAY_DIFFER))
    if differing:
        raise ConfigError(f"adapt: {folder} holds another model than this run's:\n" + "\n".join(differing) + "\nUse the same values.")
