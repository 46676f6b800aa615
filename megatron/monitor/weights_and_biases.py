"""Metrics to Weights & Biases. `WANDB_MODE=offline` keeps them in files, as wandb itself documents."""

from typing import TYPE_CHECKING, Any

from megatron.monitor.curve import Curve
from megatron.monitor.sinks import Record, Scalars

if TYPE_CHECKING:
    from megatron.config.logging import LoggingConfig

PUBLIC_SERVER = "https://api.wandb.ai"


def wandb_settings(logging: "LoggingConfig") -> dict[str, Any] | None:
    """The configuration's `wandb_*` keys as `Metrics` takes them; None where `use_wandb` does not ask for wandb."""
    if not logging.use_wandb:
        return None
    named = {
        "project": logging.wandb_project,
        "group": logging.wandb_group,
        "entity": logging.wandb_team,
        "name": logging.wandb_run_name,
        "host": logging.wandb_host,
    }
    return {name: value for name, value in named.items() if value is not None}


class WeightsAndBiases:
    """One wandb run. Figures carry their step as a value of their own, so that none is refused for coming late."""

    name = "wandb"
    keeps_unwritten = False

    def __init__(self, settings: dict[str, Any], config: dict[str, Any]):
        """`settings` are arguments of `wandb.init`, and `host`, the server. Raises ImportError without wandb, and whatever wandb raises."""
        import wandb

        arguments = dict(settings)
        host = arguments.pop("host", PUBLIC_SERVER)
        if host != PUBLIC_SERVER:  # otherwise wandb decides, from its own settings and WANDB_BASE_URL
            arguments["settings"] = wandb.Settings(base_url=host)
        self._run = wandb.init(config=config, **arguments)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Record, scalars: Scalars) -> None:
        self._run.log({"step": record["step"], **scalars})

    def curve(self, curve: Curve) -> None:
        import wandb

        table = wandb.Table(data=[list(point) for point in curve.points()], columns=["length", "perplexity"])
        self._run.log({"step": curve.step, curve.name: wandb.plot.line(table, "length", "perplexity", title=curve.name)})

    def close(self) -> None:
        self._run.finish()
