"""Which parameters a run trains; all others are frozen."""

from torch import nn

from megatron.config import Config, ConfigError
from megatron.model.gpt import GPT
from megatron.positional.dape import DapeMap


def freeze(model: GPT, config: Config) -> None:
    """Leave `requires_grad` only to what `trainable` names. Raises ConfigError where nothing would be trained."""
    trainable = config.training.trainable
    if trainable == "all":
        return
    chosen = map_parameter_names(model) if trainable == "dape" else model.positional_parameter_names()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    if not chosen:
        raise ConfigError(
            f"{config.place('trainable')}trainable: {trainable}: nothing would be trained, pos_emb {model.pos_emb!r} has no such "
            "parameters. Put a DAPE map over it (`dape_` in front of its name), or use trainable: all."
        )


def map_parameter_names(model: nn.Module) -> set[str]:
    """Names (as in `named_parameters`) of the DAPE maps' parameters."""
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, DapeMap)]
    return {f"{name}.{parameter}" for name, module in modules for parameter, _ in module.named_parameters()}


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """(trained, all), counted whole where ZeRO-3 shards them."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)
