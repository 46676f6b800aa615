"""The DeepSpeed configuration of a run."""

from typing import Any

from megatron.config.config import Config


def deepspeed_config(config: Config, world_size: int) -> dict[str, Any]:
    """What `deepspeed.initialize(config=...)` gets. Optimiser and schedule are not in it: the run builds them itself."""
    return {
        "train_batch_size": config.training.train_batch_size,
        "train_micro_batch_size_per_gpu": config.training.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.training.gradient_accumulation_steps,
        "gradient_clipping": config.optimizer.gradient_clipping,
        "zero_optimization": {"stage": config.optimizer.zero_optimization.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
