"""Optimiser, learning-rate schedule, weight decay, clipping and ZeRO."""

from typing import Literal

from megatron.config.base import Group, key


class OptimizerParams(Group):
    """`optimizer.params`."""

    lr: float = key(..., "Peak learning rate.", ge=0)
    betas: tuple[float, float] = key((0.9, 0.999), "Adam's exponential decay rates, from 0 to below 1.")
    eps: float = key(1e-8, "Adam's epsilon.", gt=0)
    weight_decay: float | None = key(None, "Weight decay; default: the top-level `weight_decay`.", ge=0)
    momentum: float = key(0.0, "SGD's momentum.", ge=0, lt=1)


class OptimizerBlock(Group):
    """`optimizer`."""

    type: Literal["Adam", "AdamW", "SGD"] = key(
        "Adam", "Adam and AdamW both decay weights apart from the gradient, as GPT-NeoX's Adam does."
    )
    implementation: Literal["auto", "torch", "apex", "deepspeed"] = key(
        "auto", "Whose Adam: auto is torch's (fused where there is one); apex and deepspeed must be installed to be asked for."
    )
    params: OptimizerParams = key(..., "The optimiser's own settings.")


class OffloadConfig(Group):
    """`zero_optimization.offload_optimizer` and `.offload_param`."""

    device: Literal["none", "cpu"] = key("none", "Where the state lives between steps.")
    pin_memory: bool = key(False, "Page-locked host memory.")


class ZeroConfig(Group):
    """DeepSpeed's `zero_optimization` block."""

    stage: int = key(
        0, "0 none, 1 optimiser state, 2 and gradients, 3 and parameters are sharded over data-parallel processes.", ge=0, le=3
    )
    allgather_partitions: bool = key(True, "Gather updated parameters with all-gather (else broadcasts).")
    allgather_bucket_size: int = key(500_000_000, "Elements gathered at once.", ge=1)
    overlap_comm: bool = key(False, "Reduce gradients while the backward pass runs.")
    reduce_scatter: bool = key(True, "Reduce-scatter instead of all-reduce.")
    reduce_bucket_size: int = key(500_000_000, "Elements reduced at once.", ge=1)
    contiguous_gradients: bool = key(True, "Copy gradients into one buffer as they are produced.")
    round_robin_gradients: bool = key(False, "Stage 2 with CPU offload: spread gradient copies over ranks.")
    offload_optimizer: OffloadConfig = key(None, "Optimiser state in host memory.", default_factory=OffloadConfig)
    offload_param: OffloadConfig = key(None, "Stage 3: parameters in host memory.", default_factory=OffloadConfig)
    stage3_max_live_parameters: int = key(1_000_000_000, "Stage 3: most parameters held whole.", ge=1)
    stage3_max_reuse_distance: int = key(1_000_000_000, "Stage 3: keep a parameter that is used again within so many.", ge=1)
    stage3_prefetch_bucket_size: int = key(50_000_000, "Stage 3: elements fetched ahead.", ge=0)
    stage3_param_persistence_threshold: int = key(100_000, "Stage 3: smaller parameters are never sharded.", ge=0)
    stage3_gather_16bit_weights_on_model_save: bool = key(False, "Stage 3: also write whole 16-bit weights.")
    ignore_unused_parameters: bool = key(True, "Parameters without a gradient are no error.")
    load_from_fp32_weights: bool = key(True, "Restore master weights, not the rounded ones.")


class OptimizerConfig(Group):
    """How a gradient becomes a step."""

    optimizer: OptimizerBlock = key(..., "The optimiser: `{type, params}`.")
    zero_optimization: ZeroConfig = key(None, "Sharding of the training state.", default_factory=ZeroConfig)
    gradient_clipping: float = key(1.0, "Largest norm of the whole gradient; 0 does not clip.", ge=0)
    weight_decay: float = key(0.1, "Decay of the matrices.", ge=0)
    weight_decay_positional: bool = key(
        False, "Also decay the positional parameters (KERPLE's a and p, FIRE's c, tables), as the DAPE paper's runs did."
    )
    lr_decay_style: Literal["constant", "linear", "cosine", "exponential", "inverse_sqrt"] = key(
        "linear", "Shape of the decay after the warm-up."
    )
    lr_decay_iters: int | None = key(None, "Steps until min_lr is reached; default: train_iters.", ge=1, le=10**12)
    min_lr: float = key(0.0, "Lowest learning rate.", ge=0)
    warmup: float = key(0.01, "Share of lr_decay_iters over which the rate rises linearly from 0.", ge=0, le=1)
    override_lr_scheduler: bool = key(
        False, "Accepted for GPT-NeoX's files: the schedule always comes from the configuration, never from a checkpoint."
    )
    use_checkpoint_lr_scheduler: bool = key(
        False, "Accepted as false only: the schedule always comes from the configuration.", json_schema_extra={"only": False}
    )
