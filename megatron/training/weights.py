"""The weights of a checkpoint, whatever layout saved them: read on one process, checked against a model, copied into it."""

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.model.gpt import GPT
from megatron.parallel.sharding import whole
from megatron.training.checkpoint import CheckpointError, read_layout

SHARED = re.compile(r"(?:embedding\.)?positional\.(.+)")  # of a method that serves all layers, outside any of them
IN_A_MAP = ".score_map."
NAMES_SHOWN = 6


def read_weights(folder: Path, *, lazy: bool = False) -> dict[str, Tensor]:
    """Parameter name -> tensor on the CPU, from a whole `global_stepN` folder (see checkpoint.choose_checkpoint).

    They stay in the file until they are used; those of ZeRO-3 are put together from its shards, with `lazy` by their `contiguous()`.
    """
    if read_layout(folder).zero_stage == 3:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # it reports each of its steps
            return dict(get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), tag=folder.name, lazy_mode=lazy))
    return read_states(folder)["module"]


def read_configuration(folder: Path) -> dict[str, Any]:
    """The configuration of the run that saved a checkpoint, group -> key -> value as in `Config.model_dump`."""
    return read_states(folder)["configuration"]


def read_states(folder: Path) -> dict[str, Any]:
    """What DeepSpeed saved for the first process, the run's own state among it; tensors are read from the file when they are used."""
    prefix = "zero_pp_rank_0_" if read_layout(folder).zero_stage == 3 else ""
    return torch.load(folder / f"{prefix}mp_rank_00_model_states.pt", map_location="cpu", weights_only=True, mmap=True)


def fitting_weights(model: GPT, folder: Path, *, adapt: bool = False) -> dict[str, Tensor]:
    """A checkpoint's weights under the model's own names; with `adapt`, those of the same model without DAPE maps.

    Raises CheckpointError listing what the model lacks, what the checkpoint lacks and what has another shape.
    """
    shapes = {name: getattr(p, "ds_shape", p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    weights = read_weights(folder)
    advice = "Use the `pos_emb` and the model's keys that it was trained with, or load another checkpoint."
    if adapt:
        if any(IN_A_MAP in name for name in weights):
            raise CheckpointError(f"{folder}: has DAPE maps already, there is nothing to adapt; finetune: true goes on from its weights.")
        shapes = {name: shape for name, shape in shapes.items() if IN_A_MAP not in name}
        weights = in_every_layer(weights, len(model.layers))
        advice = "With adapt: true, `load` must hold the same model without its DAPE map (pos_emb without `dape_`)."
    both = shapes.keys() & weights.keys()
    differing = sorted(f"{n} {list(weights[n].shape)} instead of {list(shapes[n])}" for n in both if weights[n].shape != shapes[n])
    lists = {
        "it lacks": sorted(shapes.keys() - both),
        "the model lacks": sorted(weights.keys() - both),
        "of another shape": differing,
    }
    if any(lists.values()):
        found = "\n".join(f"  {words}: {_some(names)}" for words, names in lists.items() if names)
        raise CheckpointError(f"{folder}: its parameters are not this configuration's model.\n{found}\n{advice}")
    return weights


def in_every_layer(weights: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Parameters of a method that serves all layers: from their one name to those they have where each layer has a DAPE map."""
    renamed = {}
    for name, weight in weights.items():
        shared = SHARED.fullmatch(name)
        names = [f"layers.{layer}.attention.positional.{shared[1]}" for layer in range(num_layers)] if shared else [name]
        renamed |= dict.fromkeys(names, weight)
    return renamed


@torch.no_grad()
def fill(model: GPT, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the parameters of their names; others stay.

    Under ZeRO-3 every process calls this, and the first one's weights count: the others may bring none.
    """
    for name, parameter in model.named_parameters():
        with whole([parameter], write=True):
            if name in weights:
                parameter.copy_(weights[name])


def _some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
