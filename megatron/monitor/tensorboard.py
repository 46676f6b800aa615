"""Metrics as TensorBoard event files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron.monitor.curve import Curve, draw
from megatron.monitor.sinks import Record, Scalars


class TensorBoard:
    """Scalars `train/lm_loss`, `valid/perplexity/1024`, ...; perplexity by length as an image a step; the configuration as a text."""

    name = "TensorBoard"
    keeps_unwritten = False

    def __init__(self, folder: str | Path, config: dict[str, Any], start_step: int):
        """`start_step` is the step that the run goes on from: points beyond it, of a run that was killed later, disappear from the curves.

        Raises ImportError where the package `tensorboard` is not installed.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1 if start_step else None, flush_secs=30)
        table = ["| key | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in _flat(config))]
        self._writer.add_text("configuration", "\n".join(table), start_step)

    def write(self, record: Record, scalars: Scalars) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, record["step"])

    def curve(self, curve: Curve) -> None:
        self._writer.add_image(curve.name, draw(curve), curve.step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"model": {"hidden_size": 64}}` -> `model.hidden_size`, 64."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
