"""What every place that metrics go to has in common: the interface of a sink, and the names of its scalars."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from megatron.monitor.curve import Curve

Record = Mapping[str, Any]
Scalars = dict[str, float]  # a curve's name -> its value

BOOKKEEPING = frozenset(
    {"step", "split", "protocol", "eval_length", "stride", "sequences", "scored_tokens"}
)  # say what was measured, and are not measurements


USUAL = "last"  # protocol of every evaluation unless eval_protocols says otherwise


class Sink(Protocol):
    """One place that metrics go to. Any method may raise: `Metrics` reports that once, and training goes on."""

    name: str  # as messages call it
    keeps_unwritten: bool  # True: what could not be written is kept and tried again; False: a failure switches the sink off

    def write(self, record: Record, scalars: Scalars) -> None:
        """One record, of the training step `record["step"]`; the same measurements as points of curves."""

    def curve(self, curve: Curve) -> None:
        """A curve over the evaluation length, where the place can show one."""

    def close(self) -> None:
        """Write what is still in memory."""


def training_scalars(record: Record) -> Scalars:
    """`{"lm_loss": 3.2}` -> `{"train/lm_loss": 3.2}`."""
    return {f"train/{name}": value for name, value in _numbers(record)}


def evaluation_scalars(record: Record) -> Scalars:
    """One name per length: `{"split": "valid", "eval_length": 1024, "perplexity": 9.1}` -> `{"valid/perplexity/1024": 9.1}`.

    Protocols but the usual one have their name in it: `valid/sliding/perplexity/1024`.
    """
    ending = f"/{record['eval_length']}" if "eval_length" in record else ""
    return {f"{evaluation_name(record)}/{name}{ending}": value for name, value in _numbers(record)}


def evaluation_name(record: Record) -> str:
    """`valid`, or `valid/sliding` for a protocol that is not the usual one."""
    split, protocol = record.get("split", "valid"), record.get("protocol", USUAL)
    return split if protocol == USUAL else f"{split}/{protocol}"


def positional_scalars(record: Record) -> Scalars:
    """`{"positional": {"layer0": {"a_mean": 0.4}}}` -> `{"positional/layer0/a_mean": 0.4}`."""
    return dict(_numbers(record))


def _numbers(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The measurements of a record; those of a nested record are named `outer/inner`."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif name not in BOOKKEEPING and isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, value


def plain(value: Any) -> Any:
    """Tensors and numpy scalars inside a record become Python numbers; everything else stays."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value
