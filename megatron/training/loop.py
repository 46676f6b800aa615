"""The training loop: step, log, save, evaluate, and stop when asked."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from megatron.config import Config
from megatron.data.build import Data
from megatron.data.loader import training_batches
from megatron.evaluation.scoring import Interrupted
from megatron.monitor.devices import peak_tflops
from megatron.monitor.flops import flops_per_token, model_flops_utilisation
from megatron.monitor.metrics import NullMetrics
from megatron.monitor.progress import NullProgress
from megatron.parallel.distributed import Processes
from megatron.tokenizer import Tokenizer, padded_vocab_size
from megatron.training.checkpoint import folder_name, is_save_step
from megatron.training.engine import save_checkpoint
from megatron.training.evaluator import Evaluator
from megatron.training.schedule import learning_rate
from megatron.training.signals import StopRequest
from megatron.training.step import StepResult, train_step


class Loop:
    """Runs optimiser steps of a prepared engine. All that is ordered or random is a function of (seed, step)."""

    def __init__(
        self,
        config: Config,
        engine: Any,
        tokenizer: Tokenizer,
        data: Data,
        processes: Processes,
        evaluator: Evaluator,
        metrics: NullMetrics,
        progress: NullProgress,
        stop: StopRequest,
    ):
        self.config, self.engine, self.data, self.processes = config, engine, data, processes
        self.eod, self.evaluator, self.metrics, self.progress, self.stop = tokenizer.eod, evaluator, metrics, progress, stop
        vocabulary = padded_vocab_size(tokenizer.vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.model_parallel_size)
        flops = flops_per_token(config, vocabulary, config.model.seq_length)
        self.step_tokens = config.training.train_batch_size * config.model.seq_length
        self.teraflops_per_step = flops.total * self.step_tokens / processes.world_size / 1e12  # of one device
        self.peak = config.logging.peak_tflops or peak_tflops(device_name(processes), config.precision.dtype)
        self.started = time.monotonic()
        self.interval_start, self.interval_steps = time.monotonic(), 0

    def run(self, done: int) -> bool:
        """Take steps `done` + 1 ... train_iters. Returns whether the run was asked to stop before the last one (and was saved)."""
        training, last = self.config.training, self.config.training.train_iters
        batches = training_batches(
            self.data.train,
            start_step=done,
            steps=last - done,
            global_batch=training.train_batch_size,
            micro_batch=training.train_micro_batch_size_per_gpu,
            accumulation=training.gradient_accumulation_steps,
            data_parallel_rank=self.processes.rank,
            data_parallel_size=self.processes.world_size,
            num_workers=self.config.data.num_workers,
        )
        self.engine.train()
        self.interval_start = time.monotonic()
        with closing(batches):  # ends the reading processes, also when the run stops early
            return self.take_steps(batches, done, last)

    def take_steps(self, batches: Iterator[torch.Tensor], done: int, last: int) -> bool:
        """Steps `done` + 1 ... `last` with the micro-batches [b, seq_length + 1] of `batches`; see `run`."""
        training = self.config.training
        for step in range(done + 1, last + 1):
            rate = learning_rate(self.config.optimizer, last, step)
            asked = self.stop.reason is not None or self.out_of_time()
            result = train_step(self.engine, batches, self.config, self.eod, self.processes, step, rate, asked)
            self.log(step, rate, result)
            due_to_exit = training.exit_interval is not None and step % training.exit_interval == 0
            stopping = step < last and (result.stop_requested or due_to_exit)
            saved = self.save(step, stopping)
            if not stopping and self.evaluator.is_due(step):
                stopping = self.evaluate(step)
                if stopping and not saved:
                    self.save(step, stopping)
            if stopping:
                self.say_stopped(step, self.stop.reason)
                return True
        return False

    def evaluate(self, step: int) -> bool:
        """Evaluate the validation split; returns whether that was broken off because a process was asked to stop."""
        try:
            self.evaluator.evaluate(["valid"], self.engine, step, self.metrics, self.progress, self.stop.agreed(self.processes))
        except Interrupted:
            return True
        self.engine.train()
        self.interval_start, self.interval_steps = time.monotonic(), 0
        return False

    def out_of_time(self) -> bool:
        """Whether exit_duration_in_mins is over."""
        minutes = self.config.training.exit_duration_in_mins
        return minutes is not None and time.monotonic() - self.started > 60 * minutes

    def log(self, step: int, rate: float, result: StepResult) -> None:
        """A training line every log_interval steps: this step's own loss, and the speed since the last line."""
        self.interval_steps += 1
        if step % self.config.logging.log_interval and step != self.config.training.train_iters:
            return
        now = time.monotonic()
        seconds = max(now - self.interval_start, 1e-9) / self.interval_steps
        self.interval_start, self.interval_steps = now, 0
        teraflops = self.teraflops_per_step / seconds
        record = {
            "step": step,
            "lm_loss": result.loss,
            "learning_rate": rate,
            "grad_norm": result.grad_norm,
            "loss_scale": result.loss_scale,
            "tokens": step * self.step_tokens,
            "tokens_per_second": self.step_tokens / seconds,
            "seconds": seconds,
            "tflops": teraflops,
            "mfu": model_flops_utilisation(teraflops, self.peak),
        }
        self.metrics.training(record)
        self.progress.step(step, **{key: value for key, value in record.items() if key != "step"})
        if result.grad_norm is not None and not math.isfinite(result.grad_norm):
            self.progress.say(f"step {step}: fp16 gradient overflow, the step was skipped; loss scale {result.loss_scale:g}")

    def save(self, step: int, stopping: bool) -> bool:
        """Write a checkpoint where one is due; returns whether it was."""
        keys = self.config.checkpoint
        due = is_save_step(step, self.config.training.train_iters, keys.checkpoint_factor, keys.checkpoint_scale, keys.extra_save_iters)
        if keys.save is None or not (due or stopping):
            return False
        state = {
            "step": step,
            "global_batch": self.config.training.train_batch_size,
            "samples": step * self.config.training.train_batch_size,  # data position
            "seed": self.config.training.seed,  # with `step`, all of the random state: every draw is a function of the two
            "configuration": self.config.model_dump(mode="json"),
        }
        save_checkpoint(self.engine, self.config, self.processes, step, state)
        self.progress.say(f"saved {Path(keys.save) / folder_name(step)}")
        self.interval_start, self.interval_steps = time.monotonic(), 0
        return True

    def say_stopped(self, step: int, reason: str | None) -> None:
        """Why the run ends early, and how to go on."""
        saved = self.config.checkpoint.save is not None
        outcome = "a checkpoint is saved; the same command goes on from it" if saved else "nothing is saved: `save` is not set"
        why = reason or "exit_interval or exit_duration_in_mins, or another rank was asked"
        self.progress.say(f"stopped after step {step} ({why}): {outcome}.")


def device_name(processes: Processes) -> str:
    """The GPU's name, or `cpu`."""
    if processes.device.type == "cpu":
        return "cpu"
    return torch.cuda.get_device_name(processes.device)
