"""Fill in what follows from other keys, and refuse what cannot be. Imports no torch: a run finds out before it starts."""

from collections import Counter
from typing import Any, Literal, TypeVar

from megatron.config.base import ConfigError, Group
from megatron.config.config import Config
from megatron.config.methods import ResolvedMethod, resolve
from megatron.config.precision import PrecisionConfig
from megatron.config.training import TrainingConfig
from megatron.config.wording import show
from megatron.config.xpos_span import LARGEST, longest_span

G = TypeVar("G", bound=Group)

EVALUATION_FACTORS = (1, 2, 4, 8, 16)
LONGEST_EVALUATION = 10**9
PRECISION_NAMES = {"fp32": "fp32", "fp16": "fp16", "bfloat16": "bf16"}


def complete(config: Config, world_size: int | None, *, cuda: bool | None = None) -> Config:
    """A configuration without open ends for `world_size` processes.

    world_size=None leaves the batch arithmetic open, and cuda=None everything that depends on whether there is a GPU (building on the
    meta device needs neither). Raises ConfigError with every impossible combination, one a line.
    """
    check = _Checks(config)
    check.model()
    if check.method is not None:
        check.positional(check.method)
        check.position_sampling(check.method)
        check.adapt(check.method)
    check.optimizer(cuda)
    check.data()
    check.checkpoint()
    check.parallel()
    check.evaluation()
    precision = check.precision(cuda)
    training = config.training if world_size is None else check.batch(world_size)
    if check.problems:
        raise ConfigError("\n".join(check.problems))

    model, positional, optimizer = config.model, config.positional, config.optimizer
    lengths = config.evaluation.eval_lengths or default_lengths(config)
    table = model.max_position_embeddings or model.seq_length
    log_dir = config.logging.log_dir or (f"{config.checkpoint.save.rstrip('/')}/logs" if config.checkpoint.save else "logs")
    return _with(
        config,
        model=_with(model, max_position_embeddings=table, num_kv_heads=model.kv_heads, intermediate_size=model.mlp_width),
        positional=_with(
            positional,
            fire_threshold=positional.fire_threshold or max(1, model.seq_length // 2),
            rotary_scaling=positional.rotary_scaling.completed(model.seq_length),
            dape_init="identity" if config.checkpoint.adapt else positional.dape_init,
        ),
        precision=precision,
        optimizer=_with(optimizer, lr_decay_iters=optimizer.lr_decay_iters or max(1, config.training.train_iters)),
        training=training,
        evaluation=_with(
            config.evaluation,
            eval_lengths=lengths,
            eval_stride=config.evaluation.eval_stride or max(1, min(model.seq_length, *lengths) // 2),
        ),
        logging=_with(config.logging, log_dir=log_dir),
    )


def default_lengths(config: Config) -> list[int]:
    """seq_length x 1, 2, 4, 8, 16; no further than a learned table, xPos or the positions to draw from reach."""
    lengths = [config.model.seq_length * factor for factor in EVALUATION_FACTORS]
    limits = [limit for limit in (table_length(config), xpos_span(config), config.positional.position_max) if limit is not None]
    return [length for length in lengths if all(length <= limit for limit in limits)]


def table_length(config: Config) -> int | None:
    """Rows of the learned position table, or None for methods without one."""
    if not resolve(config.positional.pos_emb).reads("max_position_embeddings"):
        return None
    return config.model.max_position_embeddings or config.model.seq_length


def xpos_span(config: Config) -> int | None:
    """Positions that xPos can represent in the run's number format, or None for other methods."""
    if not resolve(config.positional.pos_emb).reads("xpos_scale_base"):
        return None
    return longest_span(config.positional.xpos_scale_base, LARGEST[config.precision.dtype], LARGEST["fp32"])


class _Checks:
    """Collects problems; each method looks at one subject."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.problems: list[str] = []
        self.method = self._resolve()

    def say(self, key: str, text: str) -> None:
        """Add a problem, with the place where `key` was written."""
        self.problems.append(f"{self.config.place(key)}{key}: {text}")

    def model(self) -> None:
        model = self.config.model
        hidden, heads, groups = model.hidden_size, model.num_attention_heads, model.num_kv_heads
        if hidden % heads:
            self.say("num_attention_heads", f"{heads} heads do not divide hidden_size {hidden}{self._also('hidden_size')}.")
        if groups is not None and heads % groups:
            self.say("num_kv_heads", f"{groups} key/value heads do not divide num_attention_heads {heads}.")
        if model.gpt_j_tied and not model.gpt_j_residual:
            self.say("gpt_j_tied", "one norm can be shared only with `gpt_j_residual: true`.")

    def positional(self, method: ResolvedMethod) -> None:
        config, positional, model = self.config, self.config.positional, self.config.model
        table = table_length(config)
        if table is not None and model.seq_length > table:
            self.say("seq_length", f"{model.seq_length} is longer than the learned position table (max_position_embeddings {table}).")
        for length in config.evaluation.eval_lengths or []:
            if table is not None and length > table:
                self.say(
                    "eval_lengths",
                    f"{length} is longer than the learned position table (max_position_embeddings {table}); "
                    "a learned table cannot be evaluated beyond it.",
                )
        if positional.dape_kernel_size % 2 == 0:
            self.say("dape_kernel_size", f"must be odd (1 is DAPE, 3, 5, 7 are DAPE V2), not {positional.dape_kernel_size}.")
        if method.mapped and positional.dape_form == "s+b+f(b)" and not method.method.adds_bias:
            self.say("dape_form", f"s+b+f(b) reads the bias alone, and pos_emb: {positional.pos_emb} has none; choose another form.")
        starts_as_identity = config.checkpoint.adapt or positional.dape_init == "identity"
        if method.mapped and starts_as_identity and positional.dape_form == "s+f(s,b)" and method.method.adds_bias:
            self.say(
                "dape_form",
                f"s+f(s,b) leaves the bias of pos_emb: {positional.pos_emb} to the map, so no map starts as the identity, which "
                f"{'adapt: true' if config.checkpoint.adapt else 'dape_init: identity'} asks for; choose another form.",
            )
        if positional.dape_information_leakage:
            self._information_leakage(method)
        rotates = method.reads("rotary_pct")
        if rotates and model.hidden_size % model.num_attention_heads == 0:
            rotated = int(model.head_dim * positional.rotary_pct)
            if rotated < 2 or rotated % 2:
                self.say(
                    "rotary_pct",
                    f"{positional.rotary_pct} of a head's {model.head_dim} dimensions are {rotated} to rotate; they rotate in pairs, "
                    "so it must be even and at least 2.",
                )
            else:
                for name, problem in positional.rotary_scaling.problems(rotated, positional.rotary_emb_base):
                    self.say(name, problem)
        if not rotates:
            for name, _ in _changed(positional.rotary_scaling):
                self.say(f"rotary_scaling.{name}", f"pos_emb: {positional.pos_emb} does not rotate; remove the block rotary_scaling.")
        self._xpos_span()
        if method.method.pairs_hidden and model.hidden_size % 2:
            self.say("hidden_size", f"must be even for pos_emb: {positional.pos_emb}, not {model.hidden_size}.")
        if method.reads("rpe_max_distance") and positional.rpe_max_distance <= positional.rpe_num_buckets // 2:
            self.say(
                "rpe_max_distance",
                f"must be more than half of rpe_num_buckets ({positional.rpe_num_buckets}), where the logarithmic buckets begin, "
                f"not {positional.rpe_max_distance}.",
            )
        segments = method.reads("bipe_segment_tokens")
        if segments and positional.bipe_segment_tokens is None:
            self.say(
                "bipe_segment_tokens",
                f"is missing: pos_emb: {positional.pos_emb} needs the ids of the tokens that end a segment, such as those of a full stop "
                "and a line break (configs/README.md shows how to find them).",
            )
        scaling = positional.rotary_scaling
        if segments and scaling.original_length is None and scaling.type in ("dynamic", "yarn", "longrope"):
            self.say(
                "rotary_scaling.original_length",
                f"is missing: pos_emb: {positional.pos_emb} counts segments, so say how many of them a training sequence has.",
            )

    def _information_leakage(self, method: ResolvedMethod) -> None:
        positional = self.config.positional
        if not method.mapped:
            self.say("dape_information_leakage", f"pos_emb: {positional.pos_emb} has no DAPE map through which anything could leak.")
        elif positional.dape_kernel_size == 1:
            self.say(
                "dape_information_leakage",
                f"dape_kernel_size{self._also('dape_kernel_size')} is 1: the map looks at one key at a time, and nothing could leak. "
                "Use 3, 5 or 7.",
            )
        elif positional.dape_form == "s+b+f(b)":
            self.say(
                "dape_information_leakage",
                f"dape_form: s+b+f(b){self._also('dape_form')} reads the bias alone, which knows nothing of the text; choose another.",
            )

    def position_sampling(self, method: ResolvedMethod) -> None:
        config, positional = self.config, self.config.positional
        largest, table = positional.position_max, table_length(config)
        if positional.position_sampling == "sequential":
            if largest is not None:
                self.say("position_max", "has an effect only with position_sampling: randomized.")
            return
        if not method.method.sees_positions:
            self.say(
                "position_sampling",
                f"pos_emb: {positional.pos_emb} does not look at the positions that a sequence is given, so drawing them would change "
                "nothing; use sequential, or another pos_emb.",
            )
        if largest is None:
            self.say("position_max", "is missing: position_sampling: randomized draws positions from 0 ... position_max - 1.")
            return
        lengths = [("seq_length", config.model.seq_length), *(("eval_lengths", length) for length in config.evaluation.eval_lengths or [])]
        for key, length in lengths:
            if length > largest:
                where = self._also("position_max")
                self.say(key, f"{show(length)} tokens need as many different positions; position_max{where} is {largest}.")
        if table is not None and table < largest:
            self.say(
                "position_max",
                f"{largest} positions need as many rows of the learned position table; set max_position_embeddings"
                f"{self._also('max_position_embeddings')} to {largest} as well, not {table}.",
            )

    def optimizer(self, cuda: bool | None) -> None:
        optimizer = self.config.optimizer
        params, zero = optimizer.optimizer.params, optimizer.zero_optimization
        for beta in params.betas:
            if not 0 <= beta < 1:
                self.say("optimizer.params.betas", f"must be from 0 to below 1, not {beta}.")
        if optimizer.min_lr > params.lr:
            self.say(
                "min_lr",
                f"{optimizer.min_lr} is more than the peak rate optimizer.params.lr {params.lr}{self._also('optimizer.params.lr')}.",
            )
        if zero.stage < 3:
            for name, value in _changed(zero):
                if name.startswith("stage3_"):
                    self.say(f"zero_optimization.{name}", f"{value} has an effect only with stage 3, not with stage {zero.stage}.")
            if zero.offload_param.device != "none":
                self.say(
                    "zero_optimization.offload_param.device", f"parameters can be offloaded only with stage 3, not with stage {zero.stage}."
                )
        if zero.offload_optimizer.device != "none" and zero.stage < 1:
            self.say("zero_optimization.offload_optimizer.device", "optimiser state can be offloaded only with stage 1, 2 or 3.")
        if cuda is False:
            for part in ("offload_optimizer", "offload_param"):
                if getattr(zero, part).device != "none":
                    self.say(f"zero_optimization.{part}.device", "offloading to the CPU needs a GPU to offload from.")

    def data(self) -> None:
        data = self.config.data
        splits = ("train", "valid", "test")
        for key in ("data_path", *(f"{split}_data_paths" for split in splits)):
            if "" in (value if isinstance(value := getattr(data, key), list) else [value]):
                self.say(key, "must not hold an empty text; write the prefix of a .bin/.idx pair, or null for none.")
        given = [f"{split}_data_paths" for split in splits if getattr(data, f"{split}_data_paths") is not None]
        if data.data_path is not None and given:
            self.say("data_path", f"is cut into train, valid and test by `split`; it cannot stand beside {given[0]}{self._also(given[0])}.")
        for split in splits:
            self._mixture(f"{split}_data_weights", getattr(data, f"{split}_data_weights"), getattr(data, f"{split}_data_paths"))
        if isinstance(data.data_path, list):
            texts = [isinstance(item, str) for item in data.data_path]
            if not (texts and (all(texts) or texts == [False, True] * (len(texts) // 2))):
                self.say("data_path", "a list must be prefixes, or weight, prefix, weight, prefix, ...")
            elif not all(texts) and not _good_weights([item for item in data.data_path if not isinstance(item, str)]):
                self.say("data_path", "weights must not be negative, and not all 0.")
        if not _good_split(data.split):
            self.say("split", f'must be one to three shares, not negative and not all 0, as in "969, 30, 1", not "{data.split}".')

    def checkpoint(self) -> None:
        checkpoint = self.config.checkpoint
        factor, scale = checkpoint.checkpoint_factor, checkpoint.checkpoint_scale
        for key in ("checkpoint_factor", "extra_save_iters"):
            if getattr(checkpoint, key) and checkpoint.save is None:
                self.say(key, "no checkpoint would be written: give a folder with `save`.")
        if factor is not None and scale == "linear" and factor != int(factor):
            self.say("checkpoint_factor", f"must be a whole number of steps with checkpoint_scale: linear, not {factor}.")
        if factor is not None and scale == "log" and factor <= 1:
            self.say("checkpoint_factor", f"must be more than 1 with checkpoint_scale: log, not {factor}.")
        for step in checkpoint.extra_save_iters:
            if step < 1:
                self.say("extra_save_iters", f"steps count from 1; there is no step {step}.")
        for key in ("iteration", "finetune", "adapt"):
            if getattr(checkpoint, key) not in (None, False) and checkpoint.load is None:
                self.say(key, "there is nothing to start from: give a folder with `load`.")

    def adapt(self, method: ResolvedMethod) -> None:
        """A DAPE map for a model trained without one, and what is trained."""
        checkpoint, positional, trainable = self.config.checkpoint, self.config.positional, self.config.training.trainable
        if trainable == "dape" and not method.mapped:
            self.say("trainable", f"pos_emb: {positional.pos_emb} has no DAPE map to train; write pos_emb: dape_{positional.pos_emb}.")
        if not checkpoint.adapt:
            return
        if not method.mapped:
            self.say("adapt", f"pos_emb: {positional.pos_emb} has no DAPE map to add; write pos_emb: dape_{positional.pos_emb}.")
        if checkpoint.finetune:
            self.say("adapt", f"is finetune with a map that the checkpoint lacks; remove finetune: true{self._also('finetune')}.")
        if positional.dape_init != "identity" and "dape_init" in positional.model_fields_set:
            self.say("dape_init", f"adapt: true{self._also('adapt')} starts the map as the identity, not as {positional.dape_init}.")
        if method.mapped and method.reads("fire_activation") and positional.fire_activation != "relu":
            self.say(
                "fire_activation",
                "FIRE computes with relu where it is trained without a DAPE map and with leaky_relu under one; "
                f"with adapt: true{self._also('adapt')} write fire_activation: relu, so that the model stays the one that was trained.",
            )

    def parallel(self) -> None:
        parallel = self.config.parallel
        if parallel.model_parallel_size > 1:
            self.say("model_parallel_size", "tensor parallelism is not built yet; use 1.")
        if parallel.pipe_parallel_size > 1:
            self.say("pipe_parallel_size", "pipeline parallelism is not built yet; use 0 or 1.")

    def evaluation(self) -> None:
        keys, training_length = self.config.evaluation, self.config.model.seq_length
        lengths = keys.eval_lengths or []
        for length, count in Counter(lengths).items():
            if length < 2:
                self.say("eval_lengths", f"must be at least 2 tokens, not {length}.")
            if length > LONGEST_EVALUATION:
                self.say("eval_lengths", f"must be at most {LONGEST_EVALUATION} tokens, not {show(length)}.")
            if count > 1:
                self.say("eval_lengths", f"{show(length)} is there {count} times; keep one.")
        for protocol, count in Counter(keys.eval_protocols).items():
            if count > 1:
                self.say("eval_protocols", f"{protocol} is there {count} times; keep one.")
        shortest = min(lengths, default=training_length)
        if "sliding" in keys.eval_protocols and keys.eval_stride is not None and keys.eval_stride > shortest:
            self.say(
                "eval_stride",
                f"{show(keys.eval_stride)} is more than the shortest length, {show(shortest)}{self._also('eval_lengths')}: "
                "tokens between two windows would be left out. Use less.",
            )
        if "information_gain" in keys.eval_protocols and lengths and max(lengths) <= training_length:
            self.say(
                "eval_protocols",
                f"information_gain compares with a context of seq_length {training_length}, and no length of eval_lengths"
                f"{self._also('eval_lengths')} is more; add one, or leave the protocol out.",
            )

    def precision(self, cuda: bool | None) -> PrecisionConfig:
        """The three spellings brought together."""
        config = self.config.precision
        says: dict[str, Literal["fp32", "fp16", "bf16"]] = {}
        if config.precision is not None:
            says["precision"] = PRECISION_NAMES[config.precision]
        if config.fp16.enabled:
            says["fp16.enabled"] = "bf16" if config.fp16.type == "bfloat16" else "fp16"
        if config.bf16.enabled:
            says["bf16.enabled"] = "bf16"
        for block, name in (("fp16", "fp16"), ("bf16", "bf16")):  # enabled: false only speaks where it was written
            if (
                not getattr(config, block).enabled
                and says.get("precision") == name
                and "enabled" in getattr(config, block).model_fields_set
            ):
                says[f"{block}.enabled"] = "fp32"
        if len(set(says.values())) > 1:
            spelt = ", ".join(f"{key}{self._also(key)} says {value}" for key, value in says.items())
            self.say(next(iter(says)), f"the number format is contradictory: {spelt}. Keep one.")
            return config
        dtype = config.dtype
        if dtype == "fp16" and (self.config.launch.device == "cpu" or cuda is False):
            key = "fp16.enabled" if config.fp16.enabled else "precision"
            remedy = "--set fp16.enabled=false" if config.fp16.enabled else "--set precision=fp32"
            self.say(key, f"fp16 training needs a GPU; on a CPU use float32 ({remedy}) or bf16.")
        if self.config.launch.device == "cuda" and cuda is False:
            self.say("device", "no GPU was found for `device: cuda`.")
        spelling: Any = {"fp32": "fp32", "fp16": "fp16", "bf16": "bfloat16"}[dtype]
        return _with(
            config,
            precision=spelling,
            fp16=_with(config.fp16, enabled=dtype == "fp16", type="fp16"),
            bf16=_with(config.bf16, enabled=dtype == "bf16"),
        )

    def batch(self, world_size: int) -> TrainingConfig:
        """DeepSpeed's arithmetic: train_batch_size = micro batch x accumulation x data-parallel size; what is missing follows."""
        training, parallel = self.config.training, self.config.parallel
        if parallel.model_parallel_size > 1 or parallel.pipe_parallel_size > 1:
            return training  # refused already, by `parallel`
        replicas = world_size
        whole, micro, steps = training.train_batch_size, training.train_micro_batch_size_per_gpu, training.gradient_accumulation_steps
        if micro is None and whole is None:
            self.say("train_micro_batch_size_per_gpu", "is missing: give it or train_batch_size.")
            return training
        if micro is None:
            steps = steps or 1
            micro = self._share(whole, replicas * steps, f"{replicas} data-parallel processes x gradient_accumulation_steps {steps}")
        elif steps is None:
            steps = (
                1 if whole is None else self._share(whole, micro * replicas, f"micro batch {micro} x {replicas} data-parallel processes")
            )
        product = micro * steps * replicas
        if whole is not None and product != whole and micro and steps:
            self.say(
                "train_batch_size",
                f"{whole} is not {product} = train_micro_batch_size_per_gpu {micro} x gradient_accumulation_steps {steps} x "
                f"{replicas} data-parallel processes; leave one of the three keys out and it follows.",
            )
        return _with(training, train_batch_size=product, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=steps)

    def _share(self, whole: int, parts: int, words: str) -> int:
        """`whole` / `parts`, or 0 and a problem where it does not divide."""
        if whole % parts == 0:
            return whole // parts
        self.say("train_batch_size", f"{whole} cannot be divided by {words}.")
        return 0

    def _xpos_span(self) -> None:
        config, positional, span = self.config, self.config.positional, xpos_span(self.config)
        lengths = [("seq_length", config.model.seq_length), *(("eval_lengths", length) for length in config.evaluation.eval_lengths or [])]
        for key, length in [*lengths, ("position_max", positional.position_max or 0)]:
            if span is not None and length > span:
                self.say(
                    key,
                    f"{show(length)} positions: pos_emb: {positional.pos_emb} with xpos_scale_base {positional.xpos_scale_base:g} stays in "
                    f"the range of {config.precision.dtype} for {span}; use fewer, or a larger xpos_scale_base.",
                )

    def _mixture(self, key: str, weights: list[float] | None, paths: list[str] | None) -> None:
        if weights is None:
            return
        if self.config.data.weight_by_num_documents:
            self.say(key, "weights are either given or computed by weight_by_num_documents, not both.")
        if paths is None or len(weights) != len(paths):
            self.say(key, f"{len(weights)} weights for {len(paths or [])} prefixes in {key.replace('weights', 'paths')}.")
        elif not _good_weights(weights):
            self.say(key, "weights must not be negative, and not all 0.")

    def _resolve(self) -> ResolvedMethod | None:
        """The positional encoding, or None and a problem where the name is none."""
        try:
            return resolve(self.config.positional.pos_emb)
        except ConfigError as error:
            self.problems.append(f"{self.config.place('pos_emb')}{error}")
            return None

    def _also(self, key: str) -> str:
        where = self.config.where(key)
        return f" ({where})" if where else ""


def _good_weights(weights: list[float]) -> bool:
    return all(weight >= 0 for weight in weights) and sum(weights) > 0


def _good_split(split: str) -> bool:
    try:
        shares = [float(share) for share in split.split(",")]
    except ValueError:
        return False
    return len(shares) <= 3 and _good_weights(shares) and sum(shares) < float("inf")


def _changed(group: Group) -> list[tuple[str, Any]]:
    """Keys that differ from their defaults."""
    fields = type(group).model_fields
    return [(name, getattr(group, name)) for name in fields if getattr(group, name) != fields[name].get_default(call_default_factory=True)]


def _with(group: G, **changes: Any) -> G:
    return group.model_copy(update=changes)
