"""What the positional encodings have learnt so far, in figures."""

from megatron.model.gpt import GPT
from megatron.parallel.sharding import whole
from megatron.positional.figures import effective_distances


def positional_figures(model: GPT) -> dict[str, dict[str, float]]:
    """{"layer0": {"a_mean": 0.4, ...}, ...}, or {"shared": {...}} where one encoding serves all layers; without those that have no figures.

    Every rank takes part: under ZeRO-3 each encoding's parameters are gathered in turn.
    """
    figures = {}
    for name, encoding in model.encodings().items():
        with whole(encoding.parameters()):
            figures[name] = encoding.statistics()
    return {name: values for name, values in figures.items() if values}


def effective_lengths(model: GPT, reach: int) -> dict[str, list[int | None]]:
    """{"layer0": [one a head, null where the bias never falls below -2 within `reach` tokens], ...}; {} for encodings without a bias.

    Every rank takes part, as in `positional_figures`.
    """
    found = {}
    for name, encoding in model.encodings().items():
        if "bias" in encoding.acts_on:
            with whole(encoding.parameters()):
                found[name] = effective_distances(encoding, reach)
    return found
