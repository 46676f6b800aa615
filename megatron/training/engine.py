"""From a configuration to a DeepSpeed engine around an initialised model, and its state to and from checkpoint folders."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megatron.config import Config
from megatron.config.deepspeed import deepspeed_config
from megatron.model.gpt import GPT
from megatron.model.init import initialise
from megatron.parallel.distributed import Processes
from megatron.parallel.sharding import whole
from megatron.training import checkpoint
from megatron.training.checkpoint import CheckpointError, Layout
from megatron.training.optimizer import build_optimizer, parameter_groups, refuse_non_finite


def build_model(config: Config, vocab_size: int, processes: Processes) -> GPT:
    """The model on this process's device, initialised from the seed; under ZeRO-3 its parameters are sharded as they are made."""
    context: AbstractContextManager = nullcontext()
    if config.optimizer.zero_optimization.stage == 3:
        from deepspeed import zero

        context = zero.Init(config_dict_or_path=deepspeed_config(config, processes.world_size))
    with context:
        model = GPT(config, vocab_size)
    initialise(model, config.model, config.training.seed, partial(whole, write=True))
    return model.to(processes.device)


def build_engine(config: Config, vocab_size: int, processes: Processes) -> Any:
    """A DeepSpeed engine that trains; the learning rate is set by the training loop at each step."""
    import deepspeed

    model = build_model(config, vocab_size, processes)
    groups = parameter_groups(model, config.optimizer, model.positional_parameter_names())
    optimizer = build_optimizer(groups, config.optimizer, processes.device)
    if config.precision.dtype != "fp16":  # fp16 overflows are the loss scaler's business

        def agree(found: bool) -> bool:
            return bool(processes.sum(torch.tensor(float(found), device=processes.device)))

        refuse_non_finite(optimizer, agree)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=deepspeed_config(config, processes.world_size), dist_init_required=False
    )
    return engine


def layout_of(config: Config, processes: Processes) -> Layout:
    """How this run cuts its checkpoints into files."""
    return Layout(processes.world_size, config.optimizer.zero_optimization.stage, config.precision.dtype)


def save_checkpoint(engine: Any, config: Config, processes: Processes, step: int, state: dict[str, Any]) -> None:
    """Write `global_stepN`, atomically. Called by all ranks; `state` is the run's own (see pretrain.py), the same on every rank."""
    root = Path(config.checkpoint.save)
    if processes.is_first:
        checkpoint.temporary_folder(root, step)
    written = root / f"{checkpoint.TEMPORARY_PREFIX}{checkpoint.folder_name(step)}"
    processes.barrier()
    try:
        engine.save_checkpoint(str(root), tag=written.name, client_state=state, save_latest=False)
    except (OSError, RuntimeError) as error:  # a full disk, mostly: nothing under a final name was touched
        raise CheckpointError(
            f"{written}: the checkpoint of step {step} could not be written ({error}); older ones are untouched."
        ) from None
    processes.barrier()
    mine = checkpoint.files_below(written)[processes.rank :: processes.world_size]
    parts = processes.gather({name: checkpoint.file_record(written / name) for name in mine})
    if processes.is_first:
        checkpoint.publish(written, root, step, layout_of(config, processes), {n: r for part in parts for n, r in sorted(part.items())})
        checkpoint.remove_old(root, config.checkpoint.keep_last_n_checkpoints)
    processes.barrier()


def load_checkpoint(engine: Any, folder: Path, here: Layout, *, weights_only: bool) -> dict[str, Any]:
    """Restore the engine from a checkpoint folder and return the run's own state. `here` is this run's layout.

    Raises CheckpointError when the checkpoint was made by another layout or another model.
    """
    saved = checkpoint.read_layout(folder)
    if (saved != here and not weights_only) or (saved.zero_stage == 3) != (here.zero_stage == 3):
        raise CheckpointError(
            f"{folder} was saved by {saved.world_size} process(es) with ZeRO {saved.zero_stage} in {saved.dtype}; "
            f"this run has {here.world_size} with ZeRO {here.zero_stage} in {here.dtype}. Start it with the saved layout "
            "(changing the layout is not supported yet)."
        )
    try:
        path, state = engine.load_checkpoint(
            str(folder.parent), tag=folder.name, load_optimizer_states=not weights_only, load_module_only=weights_only
        )
    except RuntimeError as error:
        if "state_dict" not in str(error):
            raise
        raise CheckpointError(f"{folder}: its parameters are not this configuration's model.\n{error}") from None
    if path is None:
        raise CheckpointError(f"{folder}: DeepSpeed found nothing to load there.")
    return state
