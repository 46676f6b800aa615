"""The whole configuration of a run: the groups side by side."""

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


class Config(Group):
    """A checked configuration. YAML files are flat: each top-level key belongs to exactly one group."""

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
