"""Evaluation inside a run: which lengths, protocols and texts, when; a line for each into the metrics, and one of positional figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.config import Config, ConfigError
from megatron.data.build import Data
from megatron.evaluation.known import Key, key_of, plan_digest, settings_digest
from megatron.evaluation.memory import forward_bytes
from megatron.evaluation.positional import effective_lengths, positional_figures
from megatron.evaluation.protocols import Amount, Plan, Record, make_plans
from megatron.evaluation.report import describe_effective_lengths, table
from megatron.evaluation.scoring import Scorer
from megatron.monitor.curve import Curve
from megatron.monitor.memory import free_bytes
from megatron.monitor.metrics import NullMetrics
from megatron.monitor.progress import NullProgress
from megatron.monitor.sinks import evaluation_name
from megatron.parallel.distributed import Processes
from megatron.parallel.environment import find_place
from megatron.positional.sampling import position_sampling

GIB = 2**30


@dataclass
class Evaluation:
    """What one evaluation gave: records by split, and what was left out for want of memory ("sliding at 32,768")."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


class Evaluator:
    """Holds the windows of each split, so that every evaluation of a run scores the same text.

    `checkpoint` is the fingerprint of the weights where they come from a checkpoint and stay as they are; `known` are their records that
    need not be computed again.
    """

    def __init__(
        self, config: Config, data: Data, processes: Processes, checkpoint: str | None = None, known: Mapping[Key, Record] | None = None
    ):
        """Raises UserError, before anything expensive, where a split that is to be evaluated is empty or too short."""
        keys, micro_batch = config.evaluation, config.training.train_micro_batch_size_per_gpu
        self.config, self.processes, self.checkpoint, self.known = config, processes, checkpoint, known or {}
        self.lengths = tuple(keys.eval_lengths)
        self.tokens_per_batch = keys.eval_tokens_per_batch or micro_batch * config.model.seq_length
        self.notices: list[str] = []
        self.streams = dict(self._texts(data))
        if not (keys.do_train or self.streams):
            raise ConfigError(f"nothing to evaluate: {' '.join(self.notices) or 'do_valid and do_test are both false; set one of them.'}")
        sequences = keys.eval_sequences or keys.eval_iters * micro_batch
        amount = Amount(self.lengths, sequences, keys.eval_last_tokens, keys.eval_stride, config.model.seq_length)
        self.plans = {
            split: make_plans(keys.eval_protocols, len(stream), amount, what=f"the {split} split") for split, stream in self.streams.items()
        }

    def _texts(self, data: Data) -> Iterator[tuple[str, Any]]:
        """(split, stream) of the splits to evaluate; a test split that is not there or too short is left out with a notice."""
        keys, longest = self.config.evaluation, max(self.lengths)
        if keys.do_valid:
            yield "valid", data.valid
        if not keys.do_test:
            return
        tokens = 0 if data.test is None else len(data.test)
        if tokens > longest:
            yield "test", data.test
        elif tokens:
            self.notices.append(
                f"the test split is not evaluated: it has {tokens:,} tokens, the longest of eval_lengths asks for {longest:,} + 1. "
                "Give it more text (`split`, test_data_paths) or shorten eval_lengths."
            )
        elif not (keys.do_train or keys.do_valid):
            self.notices.append("the test split is empty (`split`, test_data_paths).")

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
    ) -> Evaluation:
        """Score splits by all protocols at all lengths: write each line as it is complete, show the tables, and add the encodings' figures.

        What would not fit in memory is said first, and left out. Raises Interrupted when told to.
        """
        found = Evaluation()
        plans = {split: self.plans[split] for split in splits}
        too_large = self._too_large(
            engine.module, {(split, plan): self._find(step, split, plan) for split in plans for plan in plans[split]}
        )
        for what, why in too_large.items():
            progress.say(f"warning: {what} is not evaluated: {why}")
        found.left_out = list(too_large)
        for split in plans:
            scorer = Scorer(
                engine.module,
                self.streams[split],
                self.processes,
                self.tokens_per_batch,
                progress.track,
                interrupted,
                position_sampling(self.config.positional, self.config.training.seed),
            )
            found.records[split] = []
            for protocol in self.config.evaluation.eval_protocols:
                todo = [plan for plan in plans[split] if plan.protocol == protocol and name_of(plan) not in too_large]
                if records := [self._record(plan, scorer, step, split, metrics, progress) for plan in todo]:
                    self._show(records, split, step, metrics, progress)
                found.records[split] += records
        if plans and (figures := positional_figures(engine.module)):
            metrics.positional({"step": step, "positional": figures})
        if "effective_length" in self.config.evaluation.eval_protocols:
            self._effective_lengths(engine.module, step, metrics, progress)
        return found

    def final(self, engine: Any, step: int, metrics: NullMetrics, progress: NullProgress, interrupted: Callable[[], bool]) -> Evaluation:
        """Evaluate every split at the end of the run. Raises Interrupted when told to."""
        return self.evaluate(self.streams, engine, step, metrics, progress, interrupted)

    def facts(self, settings: str) -> Record:
        """What a line of evaluations.jsonl says beside the record."""
        log_dir = Path(self.config.logging.log_dir).resolve()
        return {
            "run": log_dir.parent.name if log_dir.name == "logs" else log_dir.name,
            "pos_emb": self.config.positional.pos_emb,
            "training_length": self.config.model.seq_length,
            "checkpoint": self.checkpoint,
            "settings": settings,
        }

    def _find(self, step: int, split: str, plan: Plan) -> Record | None:
        """The record that is known already."""
        place = {"step": step, "split": split, "protocol": plan.protocol, "eval_length": plan.length}
        return self.known.get(key_of(place, self.checkpoint, plan_digest(self.config, plan))) if self.known else None

    def _record(self, plan: Plan, scorer: Scorer, step: int, split: str, metrics: NullMetrics, progress: NullProgress) -> Record:
        """One result, known or computed; what is computed is written."""
        if known := self._find(step, split, plan):
            progress.say(f"{split}, {name_of(plan)}: taken from evaluations.jsonl (--again computes it)")
            return known
        record = {"step": step, "split": split, **plan.record(scorer)}
        metrics.evaluation(record, self.facts(plan_digest(self.config, plan)))
        return record

    def _show(self, records: list[Record], split: str, step: int, metrics: NullMetrics, progress: NullProgress) -> None:
        """A protocol's table, and its curve where the metrics go to a place that shows one."""
        training_length = self.config.model.seq_length
        progress.say(table(records, split, step, training_length))
        lengths, perplexities = (tuple(record[name] for record in records) for name in ("eval_length", "perplexity"))
        metrics.curve(Curve(f"{evaluation_name(records[0])}/perplexity by length", step, lengths, perplexities, training_length))

    def _effective_lengths(self, model: Any, step: int, metrics: NullMetrics, progress: NullProgress) -> None:
        """The effective lengths of the layers' biases, up to the longest evaluation length."""
        reach = max(self.lengths)
        found = effective_lengths(model, reach)
        if not found:
            progress.say(f"effective_length: {self.config.positional.pos_emb} has no bias, and so no effective length")
            return
        record = {"step": step, "split": None, "protocol": "effective_length", "eval_length": reach, "effective_lengths": found}
        metrics.evaluation(record, self.facts(settings_digest(self.config, ["effective_length", reach])))
        progress.say(describe_effective_lengths(record))

    def _too_large(self, model: Any, found: Mapping[tuple[str, Plan], Record | None]) -> dict[str, str]:
        """{"sliding at 32,768": why} of the results still to be computed that would not fit in memory; the same on every process."""
        limit = self.config.evaluation.eval_memory_gib
        free = free_bytes(self.processes.device, find_place().local_size)
        known = [each for each in self.processes.gather(free) if each is not None]
        room = min([*known, *([] if limit is None else [limit * GIB])], default=None)
        too_large = {}
        for (_, plan), record in found.items():
            need = max(self._bytes(model, part) for part in plan.parts)
            if record is None and room is not None and need > room:
                too_large[name_of(plan)] = (
                    f"it needs about {need / GIB:.2f} GiB on each process, and {room / GIB:.2f} GiB are "
                    f"{'allowed by eval_memory_gib' if limit is not None and room == limit * GIB else 'free'}. "
                    "Fewer processes on a machine, a smaller eval_tokens_per_batch or a shorter length need less."
                )
        return too_large

    def _bytes(self, model: Any, part: Any) -> int:
        """Peak of scoring a part of a plan."""
        return forward_bytes(model, self.config, max(1, self.tokens_per_batch // part.length), part.length, part.scored)


def name_of(plan: Plan) -> str:
    """ "sliding at 32,768"."""
    return f"{plan.protocol} at {plan.length:,}"
