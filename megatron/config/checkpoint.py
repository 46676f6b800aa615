"""When checkpoints are written, where, and what a run starts from."""

from typing import Literal

from megatron.config.base import Group, key


class CheckpointConfig(Group):
    """Checkpoints are folders `global_stepN` under `save`; `latest` names the newest."""

    save: str | None = key(None, "Folder to write checkpoints to; none are written without it.", min_length=1)
    load: str | None = key(
        None, "Folder to start from. Nothing there is an error, unless it equals `save` (a run's first start).", min_length=1
    )
    iteration: int | None = key(None, "Load `global_stepN` of this step instead of the latest.", ge=0, le=10**12)
    checkpoint_factor: int | float | None = key(
        None, "Steps between checkpoints (`checkpoint_scale: linear`), or the ratio of their steps (`log`).", gt=0
    )
    checkpoint_scale: Literal["linear", "log"] = key("linear", "Checkpoints every checkpoint_factor steps, or at 1, f, f^2, ...")
    extra_save_iters: list[int] = key(None, "Further steps to save at.", default_factory=list)
    keep_last_n_checkpoints: int | None = key(None, "Delete older checkpoints once so many are whole; default: keep all.", ge=1)
    finetune: bool = key(False, "Load only the weights; step, optimiser and data start anew.")
    adapt: bool = key(
        False,
        "As finetune, and `load` holds the same model without its DAPE map (`pos_emb` without `dape_`): the map starts as the identity.",
    )
    checkpoint_validation_with_forward_pass: bool = key(
        False, "Accepted as false only: manifests with hashes check a checkpoint.", json_schema_extra={"only": False}
    )
