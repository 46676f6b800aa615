"""A DAPE map for a model trained without one: that the checkpoint holds this model, apart from the map."""

from pathlib import Path

from megatron.config import Config, ConfigError
from megatron.config.checkpoint import CheckpointConfig
from megatron.config.methods import resolve
from megatron.training.checkpoint import saved_steps
from megatron.training.weights import read_configuration

# keys of the two groups that may differ: they change nothing that trained weights compute, or are compared in another way
FREE = {
    "model": {
        "seq_length",
        "max_position_embeddings",
        "mlp_multiple_of",
        "make_vocab_size_divisible_by",
        "init_method",
        "output_layer_init_method",
        "init_method_std",
        "hidden_dropout",
        "attention_dropout",
        "attention_backend",
    },
    "positional": {"pos_emb", "fire_activation", "dape_init", "dape_hidden_size", "dape_kernel_size", "dape_form"},
}


def has_adapted(keys: CheckpointConfig) -> bool:
    """Whether an adapting run has saved: its own checkpoints, maps included, then come before those of `load`."""
    return keys.adapt and keys.save is not None and bool(saved_steps(Path(keys.save)))


def check_adapts(config: Config, folder: Path) -> None:
    """Weights of another method may have the same names and shapes: compare the configurations. Raises ConfigError with what differs."""
    saved, here = read_configuration(folder), config.model_dump(mode="json")
    before, now = resolve(saved["positional"]["pos_emb"]), resolve(config.positional.pos_emb)
    if before.mapped:
        raise ConfigError(f"adapt: {folder} ({before.name}) has a DAPE map already; finetune: true goes on from its weights.")
    if before.base != now.base:
        raise ConfigError(
            f"adapt: {folder} was trained with pos_emb: {before.name}; write pos_emb: dape_{before.name}, or load a model with {now.base}."
        )
    differing = [
        f"  {key}: {saved[group][key]} in the checkpoint, {value} in this run"
        for group, free in FREE.items()
        for key, value in here[group].items()
        if key in saved[group] and key not in free and saved[group][key] != value
    ]
    if differing:
        raise ConfigError(f"adapt: {folder} holds another model than this run's:\n" + "\n".join(differing) + "\nUse the same values.")
