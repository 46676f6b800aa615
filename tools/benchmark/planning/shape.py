"""The numbers of a run that memory, communication and time follow from, and how GPUs are shared out among its parts."""

from dataclasses import dataclass

import torch

from megatron.config import Config
from megatron.config.deepspeed import zero_block
from megatron.config.methods import resolve
from megatron.errors import UserError
from megatron.model.count import count_parameters
from megatron.model.gpt import GPT
from megatron.monitor.flops import dape_channels, flops_per_token
from megatron.tokenizer import padded_vocab_size

SPLIT = ("embedding", "attention", "mlp", "head")  # parts that tensor parallelism splits; the others are whole on each of its GPUs


@dataclass(frozen=True)
class Layout:
    """`gpus` = data-parallel x tensor-parallel processes; there is no pipeline."""

    gpus: int
    tensor_parallel: int
    zero_stage: int
    micro_batch: int = 1
    accumulation: int = 1

    @property
    def data_parallel(self) -> int:
        """Replicas of the model."""
        return self.gpus // self.tensor_parallel

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.accumulation * self.data_parallel


@dataclass(frozen=True)
class Shape:
    """A model and how it is trained. Widths are numbers of elements for each token, `item` the bytes of one in the run's format."""

    split: int  # parameters that tensor parallelism splits
    replicated: int  # parameters that it does not: norms, positional encodings, DAPE's maps
    trained_share: float  # of the parameters
    item: int
    adam: bool  # two moments; else SGD with `momentum`
    momentum: bool
    layers: int
    hidden: int
    heads: int
    attended: int  # heads x head dim
    keys: int  # width of the keys, and of the values: key/value heads x head dim
    mlp: int
    gated: bool
    norms: int  # norms of a block whose results are kept
    residuals: int  # sums of a block that are kept as a norm's input
    rotates: bool
    dropout: bool
    length: int
    vocabulary: int  # logits, padding included
    backend: str
    bias: bool
    channels: int  # of DAPE's map at a pair; 0 without one
    map_width: int
    kernel: int
    recompute: bool
    segment: int  # blocks that are recomputed at once
    forward_flops: float  # of a token, without the map
    map_flops: float
    head_flops: float  # part of `forward_flops`

    def parameters(self, tensor_parallel: int) -> float:
        """On one GPU, before ZeRO-3 shards them."""
        return self.split / tensor_parallel + self.replicated

    @property
    def mapped(self) -> bool:
        """Whether there is a DAPE map."""
        return self.channels > 0


def read_shape(config: Config, vocab_size: int) -> Shape:
    """Of a configuration with `vocab_size` token ids. Raises UserError for what is not computed here."""
    model, training, zero = config.model, config.training, config.optimizer.zero_optimization
    for part in ("offload_optimizer", "offload_param"):
        if getattr(zero, part).device != "none":
            raise UserError(f"zero_optimization.{part}: a plan counts nothing in host memory; --set zero_optimization.{part}.device=none.")
    counts = count_parameters(config, vocab_size)
    total = counts["total"]
    trained = {"all": total, "dape": counts["dape"], "positional": counts["positional"] + counts["dape"]}[training.trainable]
    with torch.device("meta"):
        layer = GPT(config, vocab_size).layers[0]
    attention, resolved = layer.attention, resolve(config.positional.pos_emb)
    rows = padded_vocab_size(vocab_size, model.make_vocab_size_divisible_by, 1)
    flops = flops_per_token(config, rows, model.seq_length)
    return Shape(
        split=sum(counts[part] for part in SPLIT),
        replicated=total - sum(counts[part] for part in SPLIT),
        trained_share=trained / total,
        item=item_bytes(config),
        adam=config.optimizer.optimizer.type != "SGD",
        momentum=config.optimizer.optimizer.params.momentum > 0,
        layers=model.num_layers,
        hidden=model.hidden_size,
        heads=model.num_attention_heads,
        attended=model.num_attention_heads * model.head_dim,
        keys=model.kv_heads * model.head_dim,
        mlp=model.mlp_width,
        gated=model.gated,
        norms=1 if layer.mlp_norm is None else 2,
        residuals=1 if model.gpt_j_residual else 2,
        rotates="rotate" in attention.positional.acts_on,
        dropout=model.hidden_dropout > 0,
        length=model.seq_length,
        vocabulary=rows,
        backend=attention.attend.__module__.rpartition(".")[2],
        bias="bias" in attention.positional.acts_on,
        channels=dape_channels(model.num_attention_heads, resolved.method.adds_bias, config.positional.dape_form) if resolved.mapped else 0,
        map_width=config.positional.dape_hidden_size,
        kernel=config.positional.dape_kernel_size,
        recompute=training.checkpoint_activations,
        segment=min(training.checkpoint_num_layers, model.num_layers),
        forward_flops=flops.forward - flops.dape,
        map_flops=flops.dape,
        head_flops=flops.vocabulary,
    )


def item_bytes(config: Config) -> int:
    """Bytes of a weight or an activation."""
    return 4 if config.precision.dtype == "fp32" else 2


def stage_of(config: Config, stage: int) -> int:
    """The ZeRO stage that a run has when its configuration says `stage`: 0 becomes 1 in half precision (see config/deepspeed.py)."""
    zero = config.optimizer.zero_optimization.model_copy(update={"stage": stage})
    return zero_block(zero, half=config.precision.dtype != "fp32")["stage"]
