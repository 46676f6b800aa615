"""GPT-NeoX's keys that are not ours: accepted where they ask for nothing that is missing here, refused with the reason where they do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megatron.config.wording import show


@dataclass(frozen=True)
class Idle:
    """A key that has no effect here. `silent` values say what happens anyway; `noted` ones are accepted with `why` in the log."""

    why: str
    silent: tuple[Any, ...] = ()
    noted: Callable[[Any], bool] = lambda value: False
    otherwise: str = ""  # the reason why any other value is refused
    accepts: str = ""  # the accepted values in words, for the key reference

    def judge(self, value: Any) -> tuple[str, str]:
        """("", "") accepted in silence, ("noted", why) or ("refused", reason)."""
        if any(type(value) is type(quiet) and value == quiet for quiet in self.silent):
            return "", ""
        return (
            ("noted", self.why)
            if self.noted(value)
            else ("refused", self.otherwise or f"only {self.accepts} means something here: {self.why}")
        )


def flag(why: str) -> Idle:
    """false means nothing, true is noted."""
    return Idle(why, (False, None), lambda value: value is True, "must be true or false.", "true or false")


def off(reason: str) -> Idle:
    """Only the value that switches the feature off is accepted."""
    return Idle("", (False, None), otherwise=reason, accepts="false")


def default(reason: str, *values: Any) -> Idle:
    """Only GPT-NeoX's own default (or what means the same) is accepted."""
    return Idle("", (None, *values), otherwise=reason, accepts=" or ".join(map(show, values)) or "null")


def anything(why: str) -> Idle:
    """Any value is accepted and noted."""
    return Idle(why, (None,), lambda value: True, accepts="anything")


def dense_attention(value: Any) -> bool:
    """GPT-NeoX's [[["global"], N], ...] where every layer attends to everything before it."""
    return isinstance(value, list) and all(
        isinstance(group, list) and group and isinstance(group[0], list) and all(kind in ("global", "flash") for kind in group[0])
        for group in value
    )


FUSED = "kernels are chosen by `attention_backend`, not one by one"
LAUNCHED_BY = "set by the launcher (torchrun, deepspeed, srun or deepy.py), not by a file"

IDLE: dict[str, Idle] = {
    # kernels
    "scaled_upper_triang_masked_softmax_fusion": flag(FUSED),
    "scaled_masked_softmax_fusion": flag(FUSED),
    "bias_gelu_fusion": flag(FUSED),
    "bias_dropout_fusion": flag(FUSED),
    "rope_fusion": flag(FUSED),
    "layernorm_fusion": flag(FUSED),
    "rmsnorm_fusion": flag(FUSED),
    "use_flashattn_swiglu": flag(FUSED),
    "attention_softmax_in_fp32": flag("softmax is always float32"),
    "fp16_lm_cross_entropy": off("the loss is always float32."),
    "use_cpu_initialization": flag("parameters are always drawn on the CPU, so that they do not depend on the device"),
    "onnx_safe": flag("there is no ONNX path"),
    "attention_config": Idle(
        "every layer attends to everything before it",
        (None,),
        dense_attention,
        "only layers of kind global or flash exist here (sparse, local, gmlp, rwkv and mamba layers do not).",
        '[[["global"], N]] and [[["flash"], N]]',
    ),
    "sparsity_config": default("sparse attention is not built.", {}),
    "sparse_attention": default("sparse attention is not built.", {}),
    "rotary_save_freqs_buffer": off("rotary frequencies are computed, never stored."),
    "output_layer_parallelism": default("the output layer is split over the vocabulary.", "column"),
    "mlp_type": default("for llama write `activation: swiglu`, `use_bias_in_mlp: false` and `mlp_multiple_of: 256`.", "regular"),
    "param_sharing_style": default("layers never share parameters.", "grouped"),
    "norm_placement": default("norms stand before attention and MLP.", "pre"),
    "use_qk_layernorm": off("queries and keys are not normalised."),
    "use_separate_qk_norms": off("queries and keys are not normalised."),
    "opt_pos_emb_offset": default("positions count from 0.", 0),
    # activation checkpointing
    "partition_activations": flag("kept activations are not split over tensor-parallel processes"),
    "synchronize_each_layer": flag("nothing to synchronise in this way of recomputing"),
    "deepspeed_activation_checkpointing": flag("`checkpoint_activations` alone decides"),
    "contiguous_checkpointing": off("recomputed segments are not copied into one buffer."),
    "checkpoint_in_cpu": off("activations are recomputed, not moved to the CPU; make `checkpoint_num_layers` larger to keep fewer."),
    "profile_backward": off("no per-layer profiler; see `wall_clock_breakdown`."),
    # optimiser and data types
    "prescale_gradients": off("gradients are averaged after the reduction."),
    "gradient_predivide_factor": default("gradients are averaged after the reduction.", 1, 1.0),
    "sparse_gradients": off("gradients are dense."),
    "use_bnb_optimizer": off("bitsandbytes optimisers are not built; use `optimizer`."),
    "zero_allow_untested_optimizer": flag("always allowed"),
    "dynamic_loss_scale": Idle(
        "`fp16.loss_scale: 0` is dynamic", (None,), lambda value: value is True, "write a fixed `fp16.loss_scale` instead.", "true"
    ),
    "communication_data_type": default("gradients travel in their own format, or in float32 with `fp32_allreduce`."),
    # data
    "use_shared_fs": flag("no index files are built on any file system"),
    "pack_impl": default("documents are packed one after the other into windows.", "packed"),
    "allow_chopped": flag("with packing, a document always goes on in the next window"),
    "dataset_impl": default("one kind of data set exists, token files.", "gpt2"),
    "train_impl": default("only pretraining on the next token is built (no DPO, KTO, reward models).", "normal"),
    "short_seq_prob": default("all windows have seq_length tokens.", 0.1, 0, 0.0),
    # logging
    "steps_per_print": anything("`log_interval` decides when a line is printed"),
    "log_grad_pct_zeros": off("this figure is not logged."),
    "log_param_norm": off("this figure is not logged."),
    "log_optimizer_states": off("this figure is not logged."),
    "log_gradient_noise_scale": off("this figure is not logged."),
    "gradient_noise_scale_n_batches": default("the gradient noise scale is not logged.", 5),
    "gradient_noise_scale_cpu_offload": off("the gradient noise scale is not logged."),
    "use_comet": off("Comet is not built; use wandb, TensorBoard or metrics.jsonl."),
    "memory_profiling": off("no memory snapshots; use torch's profiler."),
    "profile": off("no profiler; see `wall_clock_breakdown`."),
    "profile_step_start": default("no profiler.", 10),
    "profile_step_stop": default("no profiler.", 12),
    "dump_state": off("DeepSpeed's state is not printed."),
    "git_hash": anything("recorded by the run itself"),
    "char_level_ppl": off("perplexity is per token."),
    # checkpoints
    "no_save_optim": off("checkpoints are always complete."),
    "no_save_rng": off("checkpoints are always complete."),
    "no_load_optim": off("write `finetune: true` to load the weights alone."),
    "no_load_rng": off("write `finetune: true` to load the weights alone."),
    "load_universal": off("checkpoints load into any number of data-parallel processes as they are."),
    # generation
    "recompute": off("the key/value cache gives the same text."),
    "return_logits": off("samples are text."),
    # processes
    "deepspeed": Idle("always", (True, None), otherwise="training always runs on DeepSpeed.", accepts="true"),
    "deepscale": off("an old name of DeepSpeed's switch."),
    "deepspeed_mpi": flag("the launcher's environment variables are found by themselves"),
    "deepspeed_slurm": flag("the launcher's environment variables are found by themselves"),
    "launcher": anything("start on several machines with torchrun or srun"),
    "hostfile": anything("no hostfile is read; start on several machines with torchrun or srun"),
    "no_ssh_check": flag("ssh is not used"),
    "force_multi": off("start on several machines with torchrun or srun."),
    "num_nodes": default("deepy.py starts processes on this machine; use torchrun or srun for more.", -1, 1),
    "detect_nvlink_pairs": flag("devices keep the order of CUDA_VISIBLE_DEVICES"),
    "pipe_partition_method": anything("there is no pipeline to cut"),
    "sequence_parallel": off("not built."),
    "is_pipe_parallel": off("follows from `pipe_parallel_size`."),
    "lazy_mpu_init": off("not built."),
    "adlr_autoresume": off("a stopped run says so by its exit code; start the same command again."),
    "adlr_autoresume_interval": default("there is no such cluster service here.", 1000),
    # mu-parametrisation
    "use_mup": off("mu-parametrisation is not built."),
    "coord_check": off("mu-parametrisation is not built."),
    "save_base_shapes": off("mu-parametrisation is not built."),
    **{
        f"mup_{name}": default("mu-parametrisation is not built.", 1, 1.0)
        for name in ("init_scale", "attn_temp", "output_temp", "embedding_mult", "rp_embedding_mult")
    },
    "mup_width_scale": default("mu-parametrisation is not built.", 2),
}

COMET = "Comet is not built; use wandb, TensorBoard or metrics.jsonl."
MAMBA = "Mamba layers are not built."
RWKV = "RWKV layers are not built."
MOE = "mixtures of experts are not built."
TRANSFORMER_ENGINE = "Transformer Engine is not used."
PREFERENCES = "only pretraining on the next token is built."
HARNESS = "task evaluation does not run inside training."
DEEPSPEED_BLOCK = "this part of DeepSpeed is not used."

REFUSED: dict[str, str] = {
    # model
    "expansion_factor": "write the MLP's width as `intermediate_size`.",
    "scalenorm_epsilon": "scalenorm is not built; use layernorm or rmsnorm.",
    "num_unique_layers": "layers never share parameters.",
    "gmlp_attn_dim": "gMLP layers are not built.",
    "soft_prompt_tuning": "soft prompts are not built.",
    "model_arch": "only the decoder-only model exists.",
    **dict.fromkeys(("num_encoder_layers", "decoder_seq_length", "extra_sentinel_tokens"), "only the decoder-only model exists."),
    **dict.fromkeys(
        ("packing", "loss_on_targets_only", "masked_lm_prob", "mean_noise_span_length"), "only pretraining on the next token is built."
    ),
    **dict.fromkeys(("mamba_selective_scan_fusion", "mamba_causal_conv_fusion", "mamba_inner_func_fusion"), MAMBA),
    **dict.fromkeys(("mamba_selective_fp32_params", "mamba_use_bias_in_conv", "mamba_use_bias_in_linears"), MAMBA),
    **dict.fromkeys(("dim_att", "head_size", "ffn_dim"), RWKV),
    **dict.fromkeys(
        ("te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha", "te_fp8_format", "te_fp8_wgrad"), TRANSFORMER_ENGINE
    ),
    **dict.fromkeys(("te_fp8_amax_history_len", "te_fp8_amax_compute_algo", "te_fp8_margin", "te_fp8_mha"), TRANSFORMER_ENGINE),
    **dict.fromkeys(("moe_num_experts", "num_experts", "moe_expert_interval", "expert_interval", "moe_top_k", "moe_token_dropping"), MOE),
    **dict.fromkeys(
        ("moe_loss_coeff", "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_lbl_in_fp32", "moe_jitter_eps", "moe_router_type"), MOE
    ),
    **dict.fromkeys(
        ("moe_expert_parallel_size", "moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity", "moe_use_residual"), MOE
    ),
    **dict.fromkeys(("moe_type", "moe_glu", "enable_expert_tensor_parallelism", "use_tutel", "sinkhorn_tolerance"), MOE),
    # data and objectives
    **dict.fromkeys(("label_data_paths", "train_label_data_paths", "valid_label_data_paths", "test_label_data_paths"), PREFERENCES),
    **dict.fromkeys(("train_reward_data_paths", "valid_reward_data_paths", "test_reward_data_paths"), PREFERENCES),
    **dict.fromkeys(
        (f"{sign}_{split}{kind}_data_paths" for sign in ("pos", "neg") for split in ("train", "valid", "test") for kind in ("", "_label")),
        PREFERENCES,
    ),
    **dict.fromkeys(
        ("dpo_fp32", "dpo_reference_free", "dpo_beta", "kto_fp32", "kto_beta", "kto_desirable_weight", "kto_undesirable_weight"),
        PREFERENCES,
    ),
    **dict.fromkeys(
        ("z_loss", "fp32_reinforce", "kl_impl", "kl_div_beta", "reinforce_leave_one_out", "precompute_model_name"), PREFERENCES
    ),
    **dict.fromkeys(
        ("serve_model_weights", "weight_server_port", "online_dataserver_ips", "online_dataserver_ports"),
        "online data serving is not built.",
    ),
    "train_epochs": "write the number of steps as `train_iters`.",
    "lr_decay_fraction": "write the number of steps as `lr_decay_iters`.",
    "padded_vocab_size": "follows from the tokenizer and `make_vocab_size_divisible_by`.",
    # logging and evaluation
    **dict.fromkeys(("comet_workspace", "comet_project", "comet_experiment_name", "comet_tags", "comet_others"), COMET),
    "memory_profiling_path": "no memory snapshots; use torch's profiler.",
    **dict.fromkeys(("eval_tasks", "eval_results_prefix", "eval_task_limit"), HARNESS),
    "prompt_end": "an interactive prompt ends with its line.",
    # checkpoints
    "save_iters": "follows from `checkpoint_factor` and `extra_save_iters`.",
    **dict.fromkeys(("s3_path", "s3_chunk_size"), "checkpoints go to a file system; copy them on from there."),
    "config_files": "the resolved configuration is written beside every checkpoint.",
    "base_shapes_file": "mu-parametrisation is not built.",
    # processes
    **dict.fromkeys(("local_rank", "rank", "world_size", "global_num_gpus", "user_script"), LAUNCHED_BY + "."),
    **dict.fromkeys(("include", "exclude"), "choose GPUs with CUDA_VISIBLE_DEVICES or `num_gpus`."),
    "comment": "pass it to sbatch or srun.",
    "account": "pass it to sbatch or srun.",
    "autotuning_run": "autotuning is not built.",
    "deepscale_config": "an old name of a DeepSpeed configuration file; write the keys here.",
    **dict.fromkeys(
        ("depth_model_parallel_size", "row_model_parallel_size", "column_model_parallel_size"), "AxoNN's parallelism is not built."
    ),
    **dict.fromkeys(("use_axonn_model_parallelism", "optimize_axonn_communication"), "AxoNN's parallelism is not built."),
    # blocks of DeepSpeed's own configuration
    "scheduler": "the learning rate follows `lr_decay_style`, `lr_decay_iters`, `min_lr` and `warmup`.",
    "amp": "Apex's mixed precision is not built; use `fp16` or `bf16`.",
    "curriculum_learning": "training lengths do not change during a run.",
    "curriculum_seqlen": "training lengths do not change during a run.",
    "tensorboard": "write `tensorboard_dir`.",
    "wandb": "write `use_wandb` and the wandb_... keys.",
    "activation_checkpointing": "write `checkpoint_activations` and `checkpoint_num_layers`.",
    "flops_profiler": "TFLOP/s and MFU are always logged.",
    "checkpoint": "write `save`, `load` and the checkpoint_... keys.",
    "deepspeed_extra_args": "DeepSpeed's configuration follows from these keys alone.",
    **dict.fromkeys(
        ("autotuning", "data_efficiency", "csv_monitor", "elasticity", "comms_logger", "compression_training", "data_types"),
        DEEPSPEED_BLOCK,
    ),
}
