"""The DeepSpeed configuration of a run."""

from typing import Any

from megatron.config.config import Config
from megatron.config.optimizer import OffloadConfig, ZeroConfig

NEVER = 10**9  # steps between DeepSpeed's own log lines: the run logs for itself


def deepspeed_config(config: Config, world_size: int) -> dict[str, Any]:
    """What `deepspeed.initialize(config=...)` (0.19.8) gets, for a completed configuration and its number of processes.

    Optimiser and schedule are not in it: the run builds the optimiser and sets its learning rate before each step.
    """
    training, precision = config.training, config.precision
    replicas = world_size // (config.parallel.model_parallel_size * max(1, config.parallel.pipe_parallel_size))
    micro, steps = training.train_micro_batch_size_per_gpu, training.gradient_accumulation_steps
    if micro is None or steps is None or training.train_batch_size != micro * steps * replicas:
        raise ValueError(f"the configuration was not completed for {world_size} processes")
    fp16 = precision.fp16
    settings: dict[str, Any] = {
        "train_batch_size": training.train_batch_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "gradient_clipping": config.optimizer.gradient_clipping,
        "zero_optimization": zero_block(config.optimizer.zero_optimization, half=precision.dtype != "fp32"),
        "zero_allow_untested_optimizer": True,
        "fp16": {
            "enabled": precision.dtype == "fp16",
            "auto_cast": fp16.auto_cast,
            "loss_scale": fp16.loss_scale,
            "initial_scale_power": fp16.initial_scale_power,
            "loss_scale_window": fp16.loss_scale_window,
            "hysteresis": fp16.hysteresis,
            "consecutive_hysteresis": fp16.consecutive_hysteresis,
            "min_loss_scale": fp16.min_loss_scale,
        },
        "bf16": {"enabled": precision.dtype == "bf16"},
        "wall_clock_breakdown": config.logging.wall_clock_breakdown,
        "steps_per_print": NEVER,
    }
    if precision.fp32_allreduce:
        settings["communication_data_type"] = "fp32"
    return settings


def zero_block(zero: ZeroConfig, *, half: bool) -> dict[str, Any]:
    """`zero_optimization`, without what the stage does not read.

    In half precision, stage 0 runs as stage 1 (the same numbers, master weights and optimiser state sharded): DeepSpeed's unsharded
    half-precision optimiser was seen to leave the stage-1 loss curve at the second step (0.19.8, bf16).
    """
    block = {
        name: value
        for name, value in zero.model_dump(exclude={"offload_optimizer", "offload_param"}).items()
        if zero.stage == 3 or not name.startswith("stage3_")
    }
    if half and zero.stage == 0:
        block["stage"] = 1
    for name, offload in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)):
        if offload.device != "none":
            block[name] = offload_block(offload)
    return block


def offload_block(offload: OffloadConfig) -> dict[str, Any]:
    """`offload_optimizer` or `offload_param`."""
    return {"device": offload.device, "pin_memory": offload.pin_memory}
