"""Evaluation inside a run: which lengths, how much text, when; one line per length, and one of positional figures, into the metrics."""

from collections.abc import Callable, Iterable
from typing import Any

from megatron.config import Config
from megatron.data.build import Data
from megatron.evaluation.last_tokens import LengthResult, choose_places, evaluate_lengths
from megatron.evaluation.positional import positional_figures
from megatron.evaluation.report import table
from megatron.monitor.metrics import NullMetrics
from megatron.monitor.progress import NullProgress
from megatron.parallel.distributed import Processes
from megatron.positional.sampling import position_sampling


class Evaluator:
    """Holds the fixed places of each split, so that every evaluation of a run scores the same text."""

    def __init__(self, config: Config, data: Data, processes: Processes):
        """Raises UserError, before anything expensive, where a split that is to be evaluated is empty or too short."""
        keys = config.evaluation
        self.config, self.processes = config, processes
        self.lengths = list(keys.eval_lengths)
        self.tokens_per_batch = keys.eval_tokens_per_batch or config.training.train_micro_batch_size_per_gpu * config.model.seq_length
        sequences = keys.eval_sequences or keys.eval_iters * config.training.train_micro_batch_size_per_gpu
        self.streams = {}
        self.places = {}
        if keys.do_valid:
            self.streams["valid"] = data.valid
        if keys.do_test and data.test is not None and len(data.test) > max(self.lengths):
            self.streams["test"] = data.test  # a test split too short for the longest length is left out, as one that is empty
        for split, stream in self.streams.items():
            self.places[split] = choose_places(len(stream), self.lengths, sequences, keys.eval_last_tokens, what=f"the {split} split")

    def is_due(self, step: int) -> bool:
        """Every eval_interval steps; the last step's evaluation is `final`'s."""
        return "valid" in self.streams and step % self.config.evaluation.eval_interval == 0 and step < self.config.training.train_iters

    def evaluate(
        self,
        splits: Iterable[str],
        engine: Any,
        step: int,
        metrics: NullMetrics,
        progress: NullProgress,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> dict[str, list[LengthResult]]:
        """Score splits at all lengths; write their lines, and one of the positional encodings' figures; show the tables.

        Raises Interrupted when told to; a split's lines are written when it is done.
        """
        results = {}
        for split in splits:
            results[split] = evaluate_lengths(
                engine.module,
                self.streams[split],
                self.places[split],
                self.lengths,
                self.processes,
                self.tokens_per_batch,
                progress.track,
                interrupted,
                position_sampling(self.config.positional, self.config.training.seed),
            )
            for result in results[split]:
                metrics.evaluation(result.record(step, split))
            progress.say(table(results[split], split, step, self.config.model.seq_length))
        if results and (figures := positional_figures(engine.module)):
            metrics.positional({"step": step, "positional": figures})
        return results

    def final(
        self, engine: Any, step: int, metrics: NullMetrics, progress: NullProgress, interrupted: Callable[[], bool]
    ) -> dict[str, list[LengthResult]]:
        """Evaluate every split at the end of the run. Raises Interrupted when told to."""
        return self.evaluate(self.streams, engine, step, metrics, progress, interrupted)
