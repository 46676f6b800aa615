"""Number formats of weights and activations, and fp16 loss scaling."""

from typing import Literal

from megatron.config.base import Group, key


class Fp16Config(Group):
    """DeepSpeed's `fp16` block."""

    enabled: bool = key(False, "Train in fp16 (needs a GPU).")
    type: Literal["fp16", "bfloat16"] = key("fp16", "GPT-NeoX's older spelling of bf16: `type: bfloat16` means `bf16: {enabled: true}`.")
    fp16: bool = key(True, "Older spelling, accepted as true only.", json_schema_extra={"only": True})
    auto_cast: bool = key(False, "Cast inputs to fp16.")
    loss_scale: float = key(0, "Fixed loss scale; 0 is dynamic.", ge=0)
    initial_scale_power: int = key(16, "The dynamic loss scale starts at 2 to this power.", ge=0, le=32)
    loss_scale_window: int = key(1000, "Steps without overflow before the scale doubles.", ge=1)
    hysteresis: int = key(2, "Overflows before the scale halves.", ge=1)
    consecutive_hysteresis: bool = key(False, "Refill the hysteresis after a step without overflow.")
    min_loss_scale: int = key(1, "Lowest dynamic loss scale.", ge=1)


class Bf16Config(Group):
    """DeepSpeed's `bf16` block."""

    enabled: bool = key(False, "Train in bf16 with float32 master weights.")


class PrecisionConfig(Group):
    """One format for weights and activations; master weights and optimiser state are always float32."""

    precision: Literal["fp32", "fp16", "bfloat16"] | None = key(None, "Shorthand for the fp16 / bf16 blocks; fp32 where nothing is said.")
    fp16: Fp16Config = key(None, "fp16 training and loss scaling.", default_factory=Fp16Config)
    bf16: Bf16Config = key(None, "bf16 training.", default_factory=Bf16Config)
    fp32_allreduce: bool = key(False, "Reduce gradients over the processes in float32.")

    @property
    def dtype(self) -> Literal["fp32", "fp16", "bf16"]:
        """The format that the three spellings above agree on (`derive.py` refuses contradictions)."""
        if self.bf16.enabled or self.precision == "bfloat16" or (self.fp16.enabled and self.fp16.type == "bfloat16"):
            return "bf16"
        return "fp16" if self.fp16.enabled or self.precision == "fp16" else "fp32"
