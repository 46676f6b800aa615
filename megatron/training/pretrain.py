"""A whole run, composed: tokenizer, data, processes, engine, starting point, loop, last evaluation."""

from dataclasses import dataclass
from pathlib import Path

from megatron.config import Config, ConfigError
from megatron.config.dump import dump_yaml
from megatron.data.build import Data, build_data
from megatron.evaluation.report import write_results
from megatron.launch import exit_codes
from megatron.monitor.metrics import Metrics, NullMetrics
from megatron.monitor.progress import NullProgress, Progress
from megatron.monitor.weights_and_biases import wandb_settings
from megatron.parallel.distributed import Processes, start_processes, stop_processes
from megatron.tokenizer import Tokenizer, build_tokenizer
from megatron.training import checkpoint
from megatron.training.engine import build_engine, layout_of, load_checkpoint
from megatron.training.evaluator import Evaluator
from megatron.training.loop import Loop, NonFiniteError


@dataclass(frozen=True)
class Start:
    """Where a run begins: the last step already taken, and the checkpoint that holds its state (None: from scratch)."""

    step: int
    checkpoint_step: int | None
    messages: tuple[str, ...] = ()


def pretrain(config: Config) -> int:
    """Train (and evaluate) as configured; returns the exit code. Everything a user can get wrong is checked before the model is built."""
    tokenizer = build_tokenizer(config.tokenizer)
    check_tokenizer(config, tokenizer)
    data = build_data(
        config.data,
        config.model.seq_length,
        config.training.seed,
        vocab_size=tokenizer.vocab_size,
        require_train=config.evaluation.do_train,
        require_validation=config.evaluation.do_valid,
    )
    processes = start_processes(config)
    try:
        start = processes.on_first(lambda: find_start(config))
        evaluator = Evaluator(config, data, processes)
        return run(config, tokenizer, data, processes, start, evaluator)
    finally:
        stop_processes()


def check_tokenizer(config: Config, tokenizer: Tokenizer) -> None:
    """Keys about documents need a token that ends them."""
    keys = [key for key in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask") if getattr(config.data, key)]
    if keys and tokenizer.eod is None:
        raise ConfigError(f"{', '.join(keys)}: the tokenizer {tokenizer.name} has no end-of-document token.")


def find_start(config: Config) -> Start:
    """Which checkpoint to load. Looks at files only; see `choose_checkpoint` for what is an error."""
    keys = config.checkpoint
    if not config.evaluation.do_train:
        folder = keys.load or keys.save
        if folder is None:
            raise ConfigError("load: not set, so there is no checkpoint to evaluate.")
        choice = checkpoint.choose_checkpoint(Path(folder), step=keys.iteration)
        return Start(choice.step, choice.step, choice.messages)
    if keys.load is None:
        if keys.save and checkpoint.saved_steps(Path(keys.save)):
            raise ConfigError(
                f"save: {keys.save} already holds checkpoints, and no `load` is set: a new run would mix with the old one. "
                "Set `load` to the same folder to go on from them, or choose another `save`."
            )
        return Start(0, None)
    same = keys.save is not None and Path(keys.save).resolve() == Path(keys.load).resolve()
    choice = checkpoint.choose_checkpoint(Path(keys.load), step=keys.iteration, may_start_anew=same and not keys.finetune)
    fresh = choice.step is None or keys.finetune
    return Start(0 if fresh else choice.step, choice.step, choice.messages)


def run(config: Config, tokenizer: Tokenizer, data: Data, processes: Processes, start: Start, evaluator: Evaluator) -> int:
    """Build the engine, restore it, train to the end or to a stop, evaluate. Returns the exit code."""
    progress = Progress(config.training.train_iters, start.step, config.logging.progress) if processes.is_first else NullProgress()
    metrics = open_metrics(config, start, progress) if processes.is_first else NullMetrics()
    try:
        for message in (*config.notices, *start.messages):
            progress.say(message)
        if processes.is_first and config.evaluation.do_train:
            write_configuration(config)
        engine = build_engine(config, tokenizer.vocab_size, processes)
        describe(config, engine, processes, data, progress)
        if start.checkpoint_step is not None:
            weights_only = config.checkpoint.finetune or not config.evaluation.do_train
            folder = Path(config.checkpoint.load or config.checkpoint.save) / checkpoint.folder_name(start.checkpoint_step)
            state = load_checkpoint(engine, folder, layout_of(config, processes), weights_only=weights_only)
            if not weights_only:
                check_state(config, state, start)
            progress.say(f"loaded {folder}; next step {start.step + 1:,}" if config.evaluation.do_train else f"loaded {folder}")
        loop = Loop(config, engine, tokenizer, data, processes, evaluator, metrics, progress)
        stopped = loop.run(start.step) if config.training.train_iters > start.step and config.evaluation.do_train else False
        if stopped:
            return exit_codes.STOPPED_RESUME_ME
        last_step = max(start.step, config.training.train_iters) if config.evaluation.do_train else start.step
        results = evaluator.final(engine, last_step, metrics, progress)
        if processes.is_first and results:
            write_results(Path(config.logging.log_dir) / "results.json", config, last_step, results)
        return exit_codes.DONE
    except NonFiniteError as error:
        progress.say(f"error: {error}. No process took this step; the newest checkpoint is from before it.")
        return exit_codes.FAILED
    finally:
        metrics.close()
        progress.close()


def check_state(config: Config, state: dict, start: Start) -> None:
    """A resumed run must go on with the same portions of data."""
    saved = state.get("global_batch")
    if saved != config.training.train_batch_size:
        raise ConfigError(
            f"train_batch_size is {config.training.train_batch_size}, the checkpoint at step {start.step} was trained with {saved}: "
            "the data position would not fit. Use the same batch size, or `finetune: true` to start anew from its weights."
        )


def write_configuration(config: Config) -> None:
    """The resolved configuration, beside the metrics and beside the checkpoints, as YAML that starts the same run again."""
    for folder in filter(None, (config.logging.log_dir, config.checkpoint.save)):
        checkpoint.write_atomically(Path(folder) / "config.yml", dump_yaml(config))


def open_metrics(config: Config, start: Start, progress: NullProgress) -> Metrics:
    """metrics.jsonl, and TensorBoard and wandb where the configuration names them."""
    keys = config.logging
    return Metrics(
        keys.log_dir,
        tensorboard_dir=keys.tensorboard_dir,
        wandb=wandb_settings(keys),
        config=config.model_dump(mode="json"),
        start_step=start.step,
        say=progress.say,
    )


def describe(config: Config, engine: object, processes: Processes, data: Data, progress: NullProgress) -> None:
    """What is about to run, in a few lines."""
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    batch = config.training
    progress.say(
        f"{parameters:,} parameters, {config.positional.pos_emb}, {config.precision.dtype}, ZeRO {config.optimizer.zero_optimization.stage}; "
        f"{processes.world_size} process(es) on {processes.device.type}; {batch.train_batch_size} sequences x {config.model.seq_length} tokens a step "
        f"({batch.train_micro_batch_size_per_gpu} x {batch.gradient_accumulation_steps} accumulated x {processes.world_size})"
    )
    progress.say(data.describe())
    progress.say(f"attention: {engine.module.attention_reason}")
