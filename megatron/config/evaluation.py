"""Evaluation during training: lengths, amount, protocol."""

from megatron.config.base import Group, key


class EvaluationConfig(Group):
    """The last-tokens protocol of the DAPE paper: the same scored text behind more and more context."""

    eval_interval: int = key(1000, "Steps between evaluations; the last step always evaluates where do_valid holds.", ge=1, le=10**12)
    eval_iters: int = key(
        100, "GPT-NeoX's measure of an evaluation: eval_iters x train_micro_batch_size_per_gpu sequences.", ge=1, le=10**12
    )
    eval_sequences: int | None = key(None, "Sequences evaluated at each length; overrides eval_iters.", ge=1, le=10**12)
    eval_lengths: list[int] | None = key(None, "Lengths in tokens; default: seq_length x 1, 2, 4, 8, 16.", min_length=1)
    eval_last_tokens: int = key(
        256, "Tokens scored at the end of each sequence (fewer where the shortest length is shorter).", ge=1, le=10**12
    )
    eval_tokens_per_batch: int | None = key(
        None, "Tokens in one forward pass of an evaluation; default: micro batch x seq_length.", ge=1, le=10**12
    )
    do_train: bool = key(True, "Train; false only evaluates what `load` gives.")
    do_valid: bool = key(True, "Evaluate on the validation split during training.")
    do_test: bool = key(True, "Evaluate on the test split at the end, where there is one.")
