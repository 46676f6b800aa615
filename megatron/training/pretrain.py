"""A whole run, composed: tokenizer, data, processes, engine, starting point, loop, last evaluation."""

import math
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from megatron.config import Config, ConfigError
from megatron.config.dump import dump_yaml
from megatron.data.build import Data, build_data
from megatron.evaluation.known import read_known
from megatron.evaluation.report import write_results
from megatron.evaluation.scoring import Interrupted
from megatron.files import check_writable, write_atomically
from megatron.launch import exit_codes
from megatron.monitor.metrics import Metrics, NullMetrics
from megatron.monitor.progress import NullProgress, Progress
from megatron.monitor.weights_and_biases import wandb_settings
from megatron.parallel.distributed import Processes, start_processes
from megatron.tokenizer import Tokenizer, build_tokenizer
from megatron.tokenizer.segments import check_segment_tokens
from megatron.training import checkpoint
from megatron.training.adapt import check_adapts, has_adapted
from megatron.training.agreement import check_same_run, other_model
from megatron.training.checkpoint import Layout
from megatron.training.engine import build_engine, check_layout, layout_of, load_checkpoint
from megatron.training.evaluator import Evaluator
from megatron.training.loop import Loop
from megatron.training.signals import StopRequest
from megatron.training.step import NonFiniteError
from megatron.training.trainable import count_parameters


@dataclass(frozen=True)
class Start:
    """Where a run begins: the last step already taken, and the checkpoint folder that holds its state (None: from scratch)."""

    step: int
    folder: Path | None = None
    weights_only: bool = False
    adapt: bool = False  # the weights are of the model without its DAPE map
    messages: tuple[str, ...] = ()
    leaves_later: bool = False  # goes on in the same folder: checkpoints there of later steps are set aside


def pretrain(config: Config) -> int:
    """Train (and evaluate) as configured; returns the exit code. Everything a user can get wrong is checked before the model is built."""
    with StopRequest() as stop:
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
        start = processes.on_first(lambda: check_start(config, find_start(config), layout_of(config, processes)))
        evaluator = build_evaluator(config, data, processes, start)
        for folder in filter(None, (config.logging.log_dir, config.checkpoint.save if config.evaluation.do_train else None)):
            processes.on_first(partial(check_writable, Path(folder)))
        code = run(config, tokenizer, data, processes, start, evaluator, stop)
        processes.barrier()  # none leaves while another may still need it
        return code


def build_evaluator(config: Config, data: Data, processes: Processes, start: Start) -> Evaluator:
    """The evaluator; where nothing is trained, it knows the checkpoint, and what evaluations.jsonl holds of it unless eval_again is set."""
    if config.evaluation.do_train:
        return Evaluator(config, data, processes)
    checkpoint_of = processes.on_first(lambda: checkpoint.fingerprint(start.folder))
    path = Path(config.logging.log_dir) / "evaluations.jsonl"
    known = {} if config.evaluation.eval_again else processes.on_first(lambda: read_known(path, checkpoint_of))
    return Evaluator(config, data, processes, checkpoint_of, known)


def check_tokenizer(config: Config, tokenizer: Tokenizer) -> None:
    """Keys about documents need a token that ends them; ids of tokens must be in the vocabulary. Raises ConfigError."""
    for key in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask"):
        if getattr(config.data, key) and tokenizer.eod is None:
            raise ConfigError(f"{config.place(key)}{key}: the tokenizer {tokenizer.name} has no end-of-document token; remove the key.")
    check_segment_tokens(config, tokenizer)


def find_start(config: Config) -> Start:
    """Which checkpoint to load; see `choose_checkpoint` for what is an error. Only rank 0 looks.

    A run that finetunes or adapts and was stopped goes on from its own `save`; an adapted model is evaluated there too.
    """
    keys = config.checkpoint
    load, save = (Path(folder) if folder else None for folder in (keys.load, keys.save))
    anew = "adapt" if keys.adapt else "finetune" if keys.finetune else None
    if not config.evaluation.do_train:
        adapted = has_adapted(keys)
        if (folder := save if adapted else load or save) is None:
            raise ConfigError("load: not set, so there is no checkpoint to evaluate.")
        choice = checkpoint.choose_checkpoint(folder, step=None if adapted else keys.iteration, needed=True)
        folder /= checkpoint.folder_name(choice.step)
        return Start(choice.step, folder, True, adapt=keys.adapt and not adapted, messages=choice.messages)
    if load is None:
        if save is not None and checkpoint.saved_steps(save):
            raise ConfigError(
                f"save: {save} already holds checkpoints, and no `load` is set: a new run would mix with the old one. "
                "Set `load` to the same folder to go on from them, or choose another `save`."
            )
        return Start(0)
    same = save is not None and save.resolve() == load.resolve()
    if anew and same:
        raise ConfigError(f"{anew}: `load` and `save` are the same folder; give the new run a `save` of its own.")
    started, wanted = (), keys.iteration
    if anew and save is not None and checkpoint.saved_steps(save):
        started = (f"{anew}: {save} holds checkpoints of this run already: going on from them.",)
        load, same, anew, wanted = save, True, None, None
    choice = checkpoint.choose_checkpoint(load, step=wanted, may_start_anew=same, needed=bool(anew))
    if choice.step is None:
        return Start(0, messages=choice.messages)
    folder = load / checkpoint.folder_name(choice.step)
    messages = (*started, *choice.messages)
    return Start(0 if anew else choice.step, folder, bool(anew), anew == "adapt", messages, leaves_later=same)


def run(
    config: Config, tokenizer: Tokenizer, data: Data, processes: Processes, start: Start, evaluator: Evaluator, stop: StopRequest
) -> int:
    """Build the engine, restore it, train to the end or to a stop, evaluate. Returns the exit code.

    Nothing is written before the run is known to start.
    """
    training = config.evaluation.do_train
    with closing(
        Progress(config.training.train_iters, start.step, config.logging.progress) if processes.is_first else NullProgress()
    ) as progress:
        for message in (*config.notices, *start.messages, *evaluator.notices):
            progress.say(message)
        weights_folder = start.folder if start.weights_only else None
        engine = build_engine(config, tokenizer.vocab_size, processes, weights_folder, adapt=start.adapt)
        describe(config, engine, processes, data, progress)
        if start.folder is not None:
            if not start.weights_only:
                load_checkpoint(engine, start.folder)
            progress.say(f"loaded {start.folder}" + (f"; next step {start.step + 1:,}" if training else ""))
        with closing(open_metrics(config, start, progress) if processes.is_first else NullMetrics()) as metrics:
            if processes.is_first and training:
                write_configuration(config)
                for message in checkpoint.set_aside_later(Path(config.checkpoint.save), start.step) if start.leaves_later else ():
                    progress.say(message)
            try:
                return train_and_evaluate(config, engine, tokenizer, data, processes, start, evaluator, metrics, progress, stop)
            except NonFiniteError as error:
                progress.say(f"error: {error}. No process took this step; the newest checkpoint is from before it.")
                return exit_codes.FAILED


def train_and_evaluate(
    config: Config,
    engine: object,
    tokenizer: Tokenizer,
    data: Data,
    processes: Processes,
    start: Start,
    evaluator: Evaluator,
    metrics: NullMetrics,
    progress: NullProgress,
    stop: StopRequest,
) -> int:
    """From the start to the end or to a stop; returns the exit code. Raises NonFiniteError."""
    training, last = config.evaluation.do_train, config.training.train_iters
    stopped = exit_codes.STOPPED_RESUME_ME if config.checkpoint.save else exit_codes.FAILED
    if training and start.step >= last:
        progress.say(f"step {start.step:,} of train_iters {last:,} is done already: nothing to train, evaluating.")
    elif training:
        loop = Loop(config, engine, tokenizer, data, processes, evaluator, metrics, progress, stop)
        if loop.run(start.step):
            return stopped
    last_step = max(start.step, last) if training else start.step
    try:
        found = evaluator.final(engine, last_step, metrics, progress, stop.agreed(processes))
    except Interrupted:
        progress.say("stopped during the last evaluation: the same command goes on there.")
        return stopped if training else exit_codes.STOPPED_RESUME_ME
    records = [record for of_split in found.records.values() for record in of_split]
    if processes.is_first and any(record["protocol"] == "last" for record in records):
        write_results(Path(config.logging.log_dir) / "results.json", config, last_step, found.records)
    lost = [f"{record['split']} at {record['eval_length']:,}" for record in records if not math.isfinite(record["loss"])]
    if lost:
        progress.say(
            f"error: the loss is not finite: {', '.join(dict.fromkeys(lost))}. The weights or the number format do not carry that length."
        )
    if found.left_out:
        progress.say(f"error: not evaluated for want of memory: {', '.join(found.left_out)}.")
    if lost or found.left_out:
        return exit_codes.FAILED
    return exit_codes.DONE


def check_start(config: Config, start: Start, here: Layout) -> Start:
    """That the run can begin from its checkpoint, as far as that shows before the model is built. Only rank 0 looks.

    Returns the start with a message more where weights are used with other keys of the model than they were trained with.
    """
    if start.folder is None:
        return start
    if start.adapt:
        check_adapts(config, start.folder)
    elif start.weights_only:
        return replace(start, messages=(*start.messages, *other_model(config, start.folder)))
    else:
        check_layout(start.folder, here)
        check_same_run(config, start.folder)
    return start


def write_configuration(config: Config) -> None:
    """The resolved configuration, beside the metrics and beside the checkpoints, as YAML that starts the same run again."""
    for folder in filter(None, (config.logging.log_dir, config.checkpoint.save)):
        write_atomically(Path(folder) / "config.yml", dump_yaml(config))


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
    trained, parameters = count_parameters(engine.module)
    batch = config.training
    progress.say(
        f"{parameters:,} parameters, {config.positional.pos_emb}, "
        f"{config.precision.dtype}, ZeRO {config.optimizer.zero_optimization.stage}; "
        f"{processes.world_size} process(es) on {processes.device.type}; "
        f"{batch.train_batch_size} sequences x {config.model.seq_length} tokens a step "
        f"({batch.train_micro_batch_size_per_gpu} x {batch.gradient_accumulation_steps} accumulated x {processes.world_size})"
    )
    if batch.trainable != "all":
        progress.say(f"trainable: {batch.trainable}: {trained:,} of {parameters:,} parameters are trained, the others are frozen")
    progress.say(data.describe())
    progress.say(f"attention: {engine.module.attention_reason}")
