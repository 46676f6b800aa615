"""Whether a run's configuration describes the model and the run that a checkpoint is of."""

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from megatron.config import Config, ConfigError
from megatron.config.methods import DAPE_OPTIONS, METHODS, ResolvedMethod, resolve
from megatron.training.weights import read_configuration

# keys of `model` and `positional` that change nothing in what trained weights compute
WITHOUT_EFFECT = frozenset(
    {
        "attention_backend",
        "hidden_dropout",
        "attention_dropout",
        "init_method",
        "output_layer_init_method",
        "init_method_std",
        "dape_init",
    }
)
# keys that only decide shapes, or a length: weights that fit are the same model's
SIZES = frozenset({"seq_length", "max_position_embeddings", "mlp_multiple_of", "make_vocab_size_divisible_by"})

# what a resumed run must share with its checkpoint beside the model: its order of data, its randomness, its optimiser's state
SAME_RUN = {
    "training": ("train_batch_size", "seed", "trainable"),
    "data": ("train_data_weights", "split"),  # not the paths: data may have moved
    "optimizer": ("optimizer.type",),
}


def model_differences(config: Config, saved: dict[str, Any], free: Set[str] = WITHOUT_EFFECT) -> Iterator[str]:
    """Keys of the model and its positional encoding that are not `free` and not as the checkpoint's configuration `saved` has them."""
    here = config.model_dump(mode="json")
    method = resolve(config.positional.pos_emb)
    before = resolve(saved["positional"]["pos_emb"])
    if before != method and "pos_emb" not in free:
        yield difference("pos_emb", before.name, method.name)
    for group in ("model", "positional"):
        for key, value in here[group].items():
            if key not in free and key != "pos_emb" and key in saved[group] and saved[group][key] != value and counts(key, method):
                yield difference(key, saved[group][key], value)


def counts(key: str, method: ResolvedMethod) -> bool:
    """Whether a method reads a key; keys that belong to no method always count."""
    if key in DAPE_OPTIONS:
        return method.mapped
    return method.reads(key) or not any(key in other.options for other in METHODS.values())


def check_same_run(config: Config, folder: Path) -> None:
    """A resumed run must have the same model, portions of data, randomness and optimiser. Raises ConfigError that lists what differs."""
    saved, here = read_configuration(folder), config.model_dump(mode="json")
    differing = list(model_differences(config, saved))
    for group, names in SAME_RUN.items():
        for name in names:
            before, now = saved[group], here[group]
            if name not in before and "." not in name:
                continue  # a key that is younger than the checkpoint
            for part in name.split("."):
                before, now = before[part], now[part]
            if before != now:
                differing.append(difference(name, before, now))
    if differing:
        raise ConfigError(
            f"{folder} was saved by a run that this one would not continue:\n" + "\n".join(differing) + "\n"
            "Use the same values, or `finetune: true` to start anew from its weights."
        )


def other_model(config: Config, folder: Path) -> tuple[str, ...]:
    """What the log should say where the weights of `folder` are used with another positional encoding or other keys of the model."""
    differing = list(model_differences(config, read_configuration(folder), WITHOUT_EFFECT | SIZES))
    if not differing:
        return ()
    return (f"note: {folder} was trained with another configuration of the model:\n" + "\n".join(differing),)


def difference(key: str, before: Any, now: Any) -> str:
    """One line of a list."""
    return f"  {key}: {before} in the checkpoint, {now} in this run"
