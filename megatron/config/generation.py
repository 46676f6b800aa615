"""Sampling text from a checkpoint (generate.py)."""

from typing import Literal

from megatron.config.base import Group, key


class GenerationConfig(Group):
    """GPT-NeoX's text-generation keys."""

    text_gen_type: Literal["unconditional", "input-file", "interactive"] = key("unconditional", "Where prompts come from.")
    temperature: float = key(0.0, "0 is greedy.", ge=0)
    top_p: float = key(0.0, "Sample from the smallest set of this probability; 0 is off.", ge=0, le=1)
    top_k: int = key(0, "Sample from so many of the likeliest; 0 is off.", ge=0, le=10**7)
    maximum_tokens: int = key(64, "Tokens generated per prompt.", ge=1, le=10**7)
    num_samples: int = key(1, "Samples per prompt (input-file) or in all (unconditional).", ge=1, le=10**9)
    sample_input_file: str | None = key(None, "A prompt per line, or jsonl with `text`.", min_length=1)
    sample_output_file: str | None = key(None, "Samples as JSON lines; default: printed only.", min_length=1)
