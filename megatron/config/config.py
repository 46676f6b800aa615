"""The whole configuration of a run: the groups side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import PrivateAttr

from megatron.config.base import Group
from megatron.config.checkpoint import CheckpointConfig
from megatron.config.data import DataConfig
from megatron.config.evaluation import EvaluationConfig
from megatron.config.generation import GenerationConfig
from megatron.config.launch import LaunchConfig
from megatron.config.logging import LoggingConfig
from megatron.config.model import ModelConfig
from megatron.config.optimizer import OptimizerConfig
from megatron.config.parallel import ParallelConfig
from megatron.config.positional import PositionalConfig
from megatron.config.precision import PrecisionConfig
from megatron.config.tokenizer import TokenizerConfig
from megatron.config.training import TrainingConfig


@dataclass(frozen=True)
class Origins:
    """Where a configuration came from. Not part of what it says: two configurations with equal keys are equal."""

    where: Mapping[str, str] = field(default_factory=dict, compare=False)  # "optimizer.params.lr" -> "configs/125M.yml:12"
    notices: tuple[str, ...] = field(default=(), compare=False)


class Config(Group):
    """A checked configuration. YAML files are flat: each top-level key belongs to exactly one group."""

    _origins: Origins = PrivateAttr(default_factory=Origins)

    model: ModelConfig
    positional: PositionalConfig
    precision: PrecisionConfig
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    parallel: ParallelConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    logging: LoggingConfig
    launch: LaunchConfig
    generation: GenerationConfig

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings, and one line for each key of the files that is accepted without effect; the run logs them."""
        return (*self.positional.warnings(), *self._origins.notices)

    def where(self, key: str) -> str:
        """ "file:line" of a dotted key, "--set", or "" for a default."""
        return self._origins.where.get(key, "")

    def place(self, key: str) -> str:
        """ "file:line: ", to begin a message about a key with; "" for a default."""
        where = self.where(key)
        return f"{where}: " if where else ""
