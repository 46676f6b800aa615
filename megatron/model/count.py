"""Parameter counts without memory: the model is built on the meta device."""

import torch

from megatron.config import Config
from megatron.model.gpt import GPT

PARTS = {"norm": "norms", "attention_norm": "norms", "mlp_norm": "norms", "attention": "attention", "mlp": "mlp"}


def count_parameters(config: Config, vocab_size: int) -> dict[str, int]:
    """Parameters by part: embedding, attention, positional (the method's own), dape (its maps), mlp, norms, head, total.

    A tied head counts once, as embedding.
    """
    with torch.device("meta"):
        model = GPT(config, vocab_size)
    counts = dict.fromkeys(("embedding", "attention", "positional", "dape", "mlp", "norms", "head"), 0)
    positional = model.positional_parameter_names()
    for name, parameter in model.named_parameters():
        counts[_part(name, name in positional)] += parameter.numel()
    return counts | {"total": sum(counts.values())}


def _part(name: str, positional: bool) -> str:
    """The part that a parameter belongs to."""
    path = name.split(".")
    if positional:
        return "dape" if "score_map" in path else "positional"
    return next((PARTS[word] for word in path if word in PARTS), path[0])
