"""Which results a checkpoint has already: evaluations.jsonl read again, and the digests that tell what a line is the result of."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from megatron.config import Config
from megatron.evaluation.protocols import Plan, Record
from megatron.monitor.json_lines import read_json_lines

Key = tuple[Any, ...]
FACTS = ("run", "pos_emb", "training_length", "checkpoint", "settings")  # fields of a line beside the record
GROUPS = ("model", "positional", "precision", "tokenizer", "data")  # of the configuration: what is computed, on which text


def settings_digest(config: Config, of: Sequence[Any]) -> str:
    """Everything but the weights that a result depends on, as 16 hexadecimal digits; `of` is what is particular to this result."""
    keys = [getattr(config, group).model_dump(mode="json") for group in GROUPS]
    text = json.dumps([keys, config.training.seed, of])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_digest(config: Config, plan: Plan) -> str:
    """The digest of a protocol at one length: the windows are part of it."""
    return settings_digest(config, [plan.protocol, [astuple(part) for part in plan.parts]])


def key_of(record: Record, checkpoint: str | None, settings: str) -> Key:
    """What two lines of the same result have in common."""
    return (record["step"], record["split"], record["protocol"], record["eval_length"], checkpoint, settings)


def read_known(path: Path, checkpoint: str) -> dict[Key, Record]:
    """The records that evaluations.jsonl holds of a checkpoint; none where there is no such file. Of two with one key the later counts."""
    if not path.is_file():
        return {}
    known = {}
    for line in read_json_lines(path)[0]:
        if line.get("checkpoint") == checkpoint and {"step", "split", "protocol", "eval_length", "settings"} <= line.keys():
            record = {name: value for name, value in line.items() if name not in FACTS}
            known[key_of(record, checkpoint, line["settings"])] = record
    return known
