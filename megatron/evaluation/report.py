"""The extrapolation tables as text, and the results file of a run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron.config import Config
from megatron.evaluation.protocols import Record
from megatron.files import write_atomically
from megatron.monitor.json_lines import finite

SAYS = {
    "last": "the same {scored_tokens:,} tokens behind more and more context",
    "non_overlapping": "sequences end to end, all tokens count",
    "sliding": "windows moved by {stride:,} tokens, new tokens count",
    "information_gain": "what context beyond the training length is worth, in nats a token, on the same {scored_tokens:,} tokens",
    "position_wise": "mean over all positions; losses by position are in evaluations.jsonl",
}
GAIN = ("gain", "loss_short")


def table(records: Sequence[Record], split: str, step: int, training_length: int) -> str:
    """One protocol's records, a row a length. The training length is marked; `stderr` is the loss's, or the gain's where there is one."""
    first = records[0]
    more = [name for name in GAIN if name in first]
    columns = ["length", "perplexity", "loss", *more, "stderr"]
    widths = [10, 12, 9, *(max(9, len(name)) for name in more), 9]
    lines = [
        f"{split}, step {step:,}, {first['protocol']}: {SAYS[first['protocol']].format(**first)}",
        " ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True)),
    ]
    for record in records:
        values = (record[name] for name in columns[1:])
        cells = [f"{record['eval_length']:,}", *("-" if value is None else f"{value:.4f}" for value in values)]
        mark = "  <- training length" if record["eval_length"] == training_length else ""
        lines.append(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + mark)
    return "\n".join(lines)


def describe_effective_lengths(record: Record) -> str:
    """A line a layer: the effective length of each head."""
    lines = [f"step {record['step']:,}, effective_length: distance at which the bias falls below -2, head by head"]
    for name, lengths in record["effective_lengths"].items():
        cells = (f"over {record['eval_length']:,}" if length is None else f"{length:,}" for length in lengths)
        lines.append(f"{name:>10} " + "  ".join(cells))
    return "\n".join(lines)


def write_results(path: Path, config: Config, step: int, results: Mapping[str, Sequence[Record]]) -> None:
    """The last evaluation of a run by the `last` protocol, as one JSON file, written whole or not at all."""
    content = {
        "pos_emb": config.positional.pos_emb,
        "training_length": config.model.seq_length,
        "step": step,
        "results": [record for records in results.values() for record in records if record["protocol"] == "last"],
    }
    write_atomically(path, json.dumps(finite(content), indent=1, allow_nan=False) + "\n")
