"""Other names that configuration files use: GPT-NeoX's and DeepSpeed's older ones, and those of the published DAPE and KERPLE code."""

from dataclasses import replace
from typing import Any

from megatron.config.yaml_file import Entries, Entry, KeyPath

# another name -> ours, dotted
KEYS = {
    "gas": "gradient_accumulation_steps",
    "batch_size": "train_micro_batch_size_per_gpu",
    "clip_grad": "gradient_clipping",
    "optimizer.params.max_grad_norm": "gradient_clipping",
    "save_interval": "checkpoint_factor",
    "kv_heads": "num_kv_heads",
    "feedforward_size": "intermediate_size",
    "lr": "optimizer.params.lr",
    "optimizer_type": "optimizer.type",
    "zero_stage": "zero_optimization.stage",
    "zero_reduce_scatter": "zero_optimization.reduce_scatter",
    "zero_contiguous_gradients": "zero_optimization.contiguous_gradients",
    "zero_reduce_bucket_size": "zero_optimization.reduce_bucket_size",
    "zero_allgather_bucket_size": "zero_optimization.allgather_bucket_size",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "bfloat16": "bf16",
    "loss_scale": "fp16.loss_scale",
    "loss_scale_window": "fp16.loss_scale_window",
    "min_scale": "fp16.min_loss_scale",
    "hysteresis": "fp16.hysteresis",
    "peak_theoretical_tflops": "peak_tflops",
    "rope_scaling": "rotary_scaling",
    "rope_scaling.rope_type": "rotary_scaling.type",
    "rope_scaling.original_max_position_embeddings": "rotary_scaling.original_length",
    "rotary_scaling.rope_type": "rotary_scaling.type",
    "rotary_scaling.original_max_position_embeddings": "rotary_scaling.original_length",
    "dapev2_kernel": "dape_kernel_size",
    "capev2_kernel": "dape_kernel_size",
}
PATHS: dict[KeyPath, KeyPath] = {tuple(other.split(".")): tuple(ours.split(".")) for other, ours in KEYS.items()}

# key -> {another value: ours}
VALUES: dict[KeyPath, dict[str, str]] = {
    ("optimizer", "type"): {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"},
    ("activation",): {"swish": "silu"},
    ("precision",): {"bf16": "bfloat16"},
    ("rotary_scaling", "type"): {"default": "none", "su": "longrope"},
}

# names that say more than one thing: name -> (what it becomes, in words)
COMPOUND = {
    "mlp_width": "`dape_hidden_size` and `fire_hidden_size`",
    "noise_seq_length": "`fire_threshold` of half the value",
    "seq_length_val": "`eval_lengths` of this one length",
    "zero_optimization.cpu_offload": "`zero_optimization.offload_optimizer.device`: cpu where true, none where false",
}

DEFAULT_KERNEL = 3
# the published fork's pos_emb -> (ours, see methods.py; kernel); None takes `dapev2_kernel` (default 3)
POSITIONAL: dict[str, tuple[str, int | None]] = {
    "kerple_c": ("dape_kerple", 1),
    "alibi_c": ("dape_alibi", 1),
    "fire_c": ("dape_fire", 1),
    "nope_c": ("dape_none", 1),
    "kerple_dapev2": ("dape_kerple", None),
    "alibi_dapev2": ("dape_alibi", None),
    "fire_dapev2": ("dape_fire", None),
    "kerple_capev2": ("dape_kerple", None),
    "alibi_capev2": ("dape_alibi", None),
    "fire_capev2": ("dape_fire", None),
    "nope_c_ffn": ("dape_none", None),
    "rope_dapev1": ("dape_rotary", 1),
    "rope_dapev2": ("dape_rotary", None),
}


def translate(entries: Entries) -> tuple[Entries, list[str]]:
    """One file's entries under our names. A key that a file gives under two names with two values is a problem."""
    ours: Entries = {}
    problems = []
    for path, entry in entries.items():
        for new_path, new_entry in _translate_one(path, entry):
            if new_path in ours and not same(ours[new_path].value, new_entry.value):
                first = ours[new_path]
                problems.append(
                    f"{new_entry.where}: {new_entry.written} is another name of {first.written} ({first.where}), "
                    "with another value; keep one."
                )
                continue
            ours[new_path] = new_entry
    return ours, problems


def translate_positional(entries: Entries) -> tuple[Entries, list[str]]:
    """Replace the fork's `pos_emb` names in the merged entries: they choose the kernel too."""
    path, kernel_path = ("pos_emb",), ("dape_kernel_size",)
    entry = entries.get(path)
    if entry is None or not isinstance(entry.value, str) or entry.value not in POSITIONAL:
        return entries, []
    name, kernel = POSITIONAL[entry.value]
    chosen = entries.get(kernel_path)
    if kernel is not None and chosen is not None and not same(chosen.value, kernel):
        return entries, [
            f"{chosen.where}: {chosen.written}: {entry.value} ({entry.where}) has kernel {kernel}; "
            f"write pos_emb: {name} to choose the kernel."
        ]
    size = chosen or replace(entry, value=DEFAULT_KERNEL if kernel is None else kernel)
    return {**entries, path: replace(entry, value=name), kernel_path: size}, []


def same(one: Any, other: Any) -> bool:
    """Equal, where true is not 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _translate_one(path: KeyPath, entry: Entry) -> list[tuple[KeyPath, Entry]]:
    name, value = ".".join(path), entry.value
    if name == "mlp_width":
        return [(("dape_hidden_size",), entry), (("fire_hidden_size",), entry)]
    if name == "noise_seq_length":
        return [(("fire_threshold",), replace(entry, value=value // 2 if _is_int(value) else value))]
    if name == "seq_length_val":
        return [(("eval_lengths",), replace(entry, value=[value] if _is_int(value) else value))]
    if name == "zero_optimization.cpu_offload" and isinstance(value, bool):
        return [(("zero_optimization", "offload_optimizer", "device"), replace(entry, value="cpu" if value else "none"))]
    for length in range(len(path), 0, -1):  # a block's other name carries its keys along
        if path[:length] in PATHS:
            path = PATHS[path[:length]] + path[length:]
            break
    if path in VALUES and isinstance(value, str):
        entry = replace(entry, value=VALUES[path].get(value, value))
    return [(path, entry)]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
