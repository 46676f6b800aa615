"""Runs from their log folders, and the seeds of one method put together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from megatron.config.evaluation import Protocol
from megatron.config.methods import METHODS, ResolvedMethod
from megatron.errors import UserError
from megatron.monitor.json_lines import as_float
from tools.analysis.names import describe
from tools.analysis.records import Placed, Record, choose, is_evaluation, is_whole, number_fault, read_lines, read_results
from tools.analysis.settings import Settings, differing, identity, read_method, read_settings

SOURCES = ("evaluations.jsonl", "metrics.jsonl", "results.json")  # the first that holds an evaluation is read
PROTOCOLS = get_args(Protocol)
MOST_KEYS = 3  # settings in a method's name


@dataclass(frozen=True)
class Run:
    """One run at one step."""

    folder: Path
    source: str  # name of the file that the evaluations are from
    step: int
    encoding: ResolvedMethod
    settings: Settings
    records: tuple[Record, ...]  # one for each protocol, length and stride

    @property
    def training_length(self) -> int:
        """Tokens of a training sequence."""
        return self.settings["seq_length"]

    @property
    def seed(self) -> Any:
        """`seed` of its configuration."""
        return self.settings.get("seed")


@dataclass(frozen=True)
class Method:
    """The seeds of one method: runs whose settings differ in nothing else that decides what is learnt."""

    label: str
    runs: tuple[Run, ...]

    @property
    def encoding(self) -> ResolvedMethod:
        """The positional encoding."""
        return self.runs[0].encoding

    @property
    def training_length(self) -> int:
        """Tokens of a training sequence."""
        return self.runs[0].training_length

    @property
    def kernel(self) -> int:
        """Kernel of the DAPE map along the keys; 1 also without a map."""
        return self.runs[0].settings.get("dape_kernel_size", 1) if self.encoding.mapped else 1

    @property
    def leaks(self) -> bool:
        """Whether the model sees what it predicts (an ablation)."""
        return self.encoding.mapped and bool(self.runs[0].settings.get("dape_information_leakage"))


def read_run(folder: Path, split: str, step: int | None = None) -> Run:
    """A run's evaluation at `step` (the highest evaluated one by default). UserError where there is none, or no such folder."""
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}. Give a run's log folder (log_dir), which holds config.yml and evaluations.jsonl.")
    settings = read_settings(folder / "config.yml")
    encoding = read_method(settings, folder / "config.yml")
    source, evaluations = read_evaluations(folder)
    chosen = choose(evaluations, "split", split, folder / source)
    steps = [record["step"] for record in chosen]
    step = max(steps) if step is None else step
    chosen = choose(chosen, "step", step, folder / source)
    records = {(record["protocol"], record["eval_length"], record.get("stride")): record for record in chosen}  # the later line counts
    return Run(folder, source, step, encoding, settings, tuple(records.values()))


def read_evaluations(folder: Path) -> tuple[str, list[Record]]:
    """(name of the file, its evaluations) of the first file that holds any."""
    for name in SOURCES:
        path = folder / name
        if path.is_file():
            records = read_results(path)[0] if path.suffix == ".json" else read_lines(path)
            if evaluations := checked(records):
                return name, evaluations
    raise UserError(f"{folder}: holds no evaluation: there is none in {', '.join(SOURCES)}. Evaluate the run's checkpoint with eval.py.")


def checked(records: Placed) -> list[Record]:
    """The evaluations with a perplexity, floats also inside their lists. UserError where a field cannot be right."""
    evaluations = []
    for where, record in records:
        if not is_evaluation(record, where):
            continue
        record = {key: [as_float(each) for each in value] if isinstance(value, list) else value for key, value in record.items()}
        for fault in faults(record):
            raise UserError(f"{where}: {fault}.")
        evaluations.append(record)
    return evaluations


def faults(record: Record) -> list[str]:
    """What cannot be right in the fields that a comparison needs beside those of every evaluation."""
    protocol, found = record.get("protocol"), []
    if protocol not in PROTOCOLS:
        found.append(f"protocol {protocol!r} is unknown; known are {', '.join(PROTOCOLS)}")
    if not is_whole(record.get("step")):
        found.append(f"step of an evaluation is {record.get('step')!r}, not a whole number")
    if protocol == "information_gain" and number_fault(record.get("gain")):
        found.append(f"gain of an evaluation is {record.get('gain')!r}, not a number")
    if protocol == "position_wise":
        ends, losses, stderrs = (record.get(name) for name in ("positions", "losses", "stderrs"))
        lists = all(isinstance(each, list) for each in (ends, losses, stderrs))
        if not lists or not len(ends) == len(losses) == len(stderrs) > 0:
            found.append("positions, losses and stderrs of an evaluation are not three lists of one length")
        elif not all(map(is_whole, ends)) or any(map(number_fault, (*losses, *(each for each in stderrs if each is not None)))):
            found.append("positions, losses and stderrs of an evaluation are not all numbers")
    return found


def gather(runs: Sequence[Run]) -> list[Method]:
    """Runs that are seeds of one method put together, in the order of the list of methods, X before DAPE-X.

    Names tell methods apart: where the positional encoding is the same, by the other settings that differ. UserError where a run is given
    twice, or two runs are the same but for their folder.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(json.dumps(identity(run.settings, run.encoding), sort_keys=True, default=str), [])
        for other in group:
            if other.seed == run.seed:
                raise UserError(
                    f"{other.folder} and {run.folder}: the same settings and the same seed ({run.seed}): not two seeds. Give one of them."
                )
        group.append(run)
    named: dict[tuple[int, str], list[list[Run]]] = {}
    for group in groups.values():
        first = group[0]
        named.setdefault((first.training_length, describe(first.encoding, first.settings)), []).append(group)
    methods = [method for (_, name), alike in named.items() for method in label(name, alike)]
    order = list(METHODS)
    return sorted(methods, key=lambda each: (each.training_length, order.index(each.encoding.base), each.encoding.mapped, each.kernel))


def label(name: str, groups: Sequence[list[Run]]) -> list[Method]:
    """Methods of one name, told apart by the settings that differ, or where these are many by the folder."""
    settings = [identity(group[0].settings, group[0].encoding) for group in groups]
    keys = differing(settings)
    if len(keys) > MOST_KEYS:
        return [Method(f"{name}, {group[0].folder}", tuple(group)) for group in groups]
    details = [[f"{key} {each.get(key)}" for key in keys] for each in settings]
    return [Method(", ".join([name, *more]), tuple(group)) for more, group in zip(details, groups, strict=True)]
