"""Evaluation during training and of a checkpoint: lengths, protocols, amount."""

from typing import Literal

from megatron.config.base import Group, key

Protocol = Literal["last", "non_overlapping", "sliding", "information_gain", "position_wise", "effective_length"]


class EvaluationConfig(Group):
    """Perplexity at lengths beyond the training length, by the papers' protocols (docs/evaluation.md)."""

    eval_interval: int = key(1000, "Steps between evaluations; the last step always evaluates where do_valid holds.", ge=1, le=10**12)
    eval_iters: int = key(
        100, "GPT-NeoX's measure of an evaluation: eval_iters x train_micro_batch_size_per_gpu sequences.", ge=1, le=10**12
    )
    eval_sequences: int | None = key(
        None, "Most sequences of the longest length that a protocol evaluates, spread over the text; overrides eval_iters.", ge=1, le=10**12
    )
    eval_lengths: list[int] | None = key(None, "Lengths in tokens; default: seq_length x 1, 2, 4, 8, 16.", min_length=1)
    eval_protocols: list[Protocol] = key(
        ["last"],
        "How the text is cut, and which of its tokens count.",
        min_length=1,
    )
    eval_last_tokens: int = key(
        256,
        "Tokens scored at the end of each sequence by last and information_gain (fewer where the shortest length is shorter).",
        ge=1,
        le=10**12,
    )
    eval_stride: int | None = key(
        None, "Tokens between two windows of sliding; default: half of seq_length or of the shortest length, whichever is less.", ge=1
    )
    eval_tokens_per_batch: int | None = key(
        None, "Tokens in one forward pass of an evaluation; default: micro batch x seq_length.", ge=1, le=10**12
    )
    eval_memory_gib: float | None = key(
        None, "Most memory (GiB) that one forward pass of an evaluation may take on a process; default: what is free.", gt=0
    )
    eval_again: bool = key(False, "Compute again what evaluations.jsonl holds of the same checkpoint and settings (eval.py).")
    do_train: bool = key(True, "Train; false only evaluates what `load` gives.")
    do_valid: bool = key(True, "Evaluate on the validation split during training.")
    do_test: bool = key(True, "Evaluate on the test split at the end, where there is one.")
