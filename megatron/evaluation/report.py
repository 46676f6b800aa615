"""The extrapolation table as text, and the results file of a run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron.config import Config
from megatron.evaluation.last_tokens import LengthResult
from megatron.files import write_atomically


def table(results: Sequence[LengthResult], split: str, step: int, training_length: int) -> str:
    """One row a length: perplexity, loss and its standard error. The training length is marked."""
    lines = [
        f"{split}, step {step:,}: the same {results[0].scored_tokens:,} tokens behind more and more context",
        f"{'length':>10} {'perplexity':>12} {'loss':>9} {'stderr':>9}",
    ]
    for result in results:
        mark = "  <- training length" if result.eval_length == training_length else ""
        lines.append(f"{result.eval_length:>10,} {result.perplexity:>12.4f} {result.loss:>9.4f} {result.stderr:>9.4f}{mark}")
    return "\n".join(lines)


def write_results(path: Path, config: Config, step: int, results: Mapping[str, Sequence[LengthResult]]) -> None:
    """The last evaluation of a run as one JSON file, written whole or not at all."""
    content = {
        "pos_emb": config.positional.pos_emb,
        "training_length": config.model.seq_length,
        "step": step,
        "results": [result.record(step, split) for split, rows in results.items() for result in rows],
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")
