"""Fill in what follows from other keys; refuse what cannot be."""

from megatron.config.base import ConfigError
from megatron.config.config import Config


def complete(config: Config, world_size: int | None, *, cuda: bool = False) -> Config:
    """A configuration without open ends. `world_size=None` leaves the batch part open."""
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError("num_attention_heads must divide hidden_size")
    model = model.model_copy(update={"max_position_embeddings": model.max_position_embeddings or model.seq_length, "num_kv_heads": model.kv_heads})
    if world_size is not None:
        micro, gas = training.train_micro_batch_size_per_gpu or 1, training.gradient_accumulation_steps or 1
        training = training.model_copy(
            update={"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas, "train_batch_size": micro * gas * world_size}
        )
    evaluation = config.evaluation
    if evaluation.eval_lengths is None:
        evaluation = evaluation.model_copy(update={"eval_lengths": [model.seq_length * factor for factor in (1, 2, 4, 8, 16)]})
    return config.model_copy(update={"model": model, "training": training, "evaluation": evaluation})
