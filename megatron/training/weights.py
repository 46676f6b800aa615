"""The weights of a checkpoint as one state dictionary, on one process, whatever ZeRO stage saved them."""

from pathlib import Path

import torch
from torch import Tensor

from megatron.training.checkpoint import read_layout


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Parameter name -> tensor on the CPU, from a whole `global_stepN` folder (see checkpoint.choose_checkpoint)."""
    if read_layout(folder).zero_stage == 3:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return dict(get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), tag=folder.name))
    states = torch.load(folder / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)
    return states["module"]
