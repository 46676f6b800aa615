"""Parameters that ZeRO-3 shards over the processes, whole for a moment."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from torch import nn


def whole(parameters: Iterable[nn.Parameter], *, write: bool = False) -> AbstractContextManager:
    """A context in which the parameters are whole on every rank; all ranks enter it together. Without ZeRO-3 it does nothing.

    What is written into them inside is lost; with `write`, what rank 0 wrote is kept.
    """
    parameters = list(parameters)
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    from deepspeed import zero

    return zero.GatheredParameters(parameters, modifier_rank=0 if write else None)
