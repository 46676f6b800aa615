"""Parameter counts without memory: the model is built on the meta device."""

import torch

from megatron.config import Config
from megatron.model.gpt import GPT

PARTS = {"norm": "norms", "attention_norm": "norms", "mlp_norm": "norms", "attention": "attention", "mlp": "mlp"}


def count_parameters(config: Config, vocab_size: int) -> dict[str, int]:
    """Parameters by part: embedding, positional, attention, mlp, norms, head, total. A tied head counts once, as embedding."""
    with torch.device("meta"):
        model = GPT(config, vocab_size)
    counts = dict.fromkeys(("embedding", "positional", "attention", "mlp", "norms", "head"), 0)
    positional = model.positional_parameter_names()
    for name, parameter in model.named_parameters():
        path = name.split(".")
        part = "positional" if name in positional else next((PARTS[word] for word in path if word in PARTS), path[0])
        counts[part] += parameter.numel()
    return counts | {"total": sum(counts.values())}
