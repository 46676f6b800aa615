"""From a configuration to a DeepSpeed engine around an initialised model, and its state to and from checkpoint folders."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.config import Config
from megatron.config.deepspeed import deepspeed_config
from megatron.model.gpt import GPT
from megatron.model.init import initialise
from megatron.parallel.distributed import Processes
from megatron.parallel.sharding import whole
from megatron.training import checkpoint
from megatron.training.checkpoint import CheckpointError, Layout
from megatron.training.optimizer import build_optimizer, parameter_groups, refuse_non_finite
from megatron.training.trainable import freeze
from megatron.training.weights import fill, fitting_weights


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


def load_weights(model: GPT, config: Config, processes: Processes, folder: Path, *, adapt: bool) -> None:
    """Start the model from a checkpoint's weights, whatever layout saved them; see `fitting_weights` for `adapt` and the errors."""
    weights: dict[str, Tensor] = {}

    def read() -> None:
        weights.update(fitting_weights(model, folder, adapt=adapt))

    processes.on_first(read)
    if not processes.is_first and config.optimizer.zero_optimization.stage < 3:
        read()
    fill(model, weights)


def build_engine(config: Config, vocab_size: int, processes: Processes, weights_folder: Path | None = None, *, adapt: bool = False) -> Any:
    """A DeepSpeed engine that trains what is trainable; the learning rate is set by the training loop at each step.

    `weights_folder` is a checkpoint whose weights to start from; with `adapt` it has no DAPE map yet.
    """
    import deepspeed

    model = build_model(config, vocab_size, processes)
    freeze(model, config)
    if weights_folder is not None:  # before DeepSpeed makes its float32 copies
        load_weights(model, config, processes, weights_folder, adapt=adapt)
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


def check_layout(folder: Path, here: Layout) -> None:
    """Raises CheckpointError where a run of this layout cannot go on from a checkpoint (from its weights alone, any run can start)."""
    saved = checkpoint.read_layout(folder)
    if saved != here:
        raise CheckpointError(
            f"{folder} was saved by {saved.world_size} process(es) with ZeRO {saved.zero_stage} in {saved.dtype}; "
            f"this run has {here.world_size} with ZeRO {here.zero_stage} in {here.dtype}. Start it with the saved layout "
            "(changing the layout is not supported yet)."
        )


def load_checkpoint(engine: Any, folder: Path) -> None:
    """Restore parameters and optimiser state from a checkpoint of this layout. Raises CheckpointError where another model made it."""
    try:
        path, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    except RuntimeError as error:
        if "state_dict" not in str(error):
            raise
        raise CheckpointError(f"{folder}: its parameters are not this configuration's model.\n{error}") from None
    if path is None:
        raise CheckpointError(f"{folder}: DeepSpeed found nothing to load there.")
