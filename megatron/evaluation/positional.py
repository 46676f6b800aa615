"""What the positional encodings have learnt so far, in figures."""

from megatron.model.gpt import GPT
from megatron.parallel.sharding import whole


def positional_figures(model: GPT) -> dict[str, dict[str, float]]:
    """{"layer0": {"a_mean": 0.4, ...}, ...}, or {"shared": {...}} where one encoding serves all layers; without those that have no figures.

    Every rank takes part: under ZeRO-3 each encoding's parameters are gathered in turn.
    """
    figures = {}
    for name, encoding in model.encodings().items():
        with whole(encoding.parameters()):
            figures[name] = encoding.statistics()
    return {name: values for name, values in figures.items() if values}
