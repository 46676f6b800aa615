"""Files of GPT-NeoX, DAPE and KERPLE: other names, keys without effect, keys that are refused."""

from pathlib import Path

import pytest

from megatron.config import ConfigError, load_config
from megatron.config.aliases import COMPOUND, KEYS, POSITIONAL
from megatron.config.methods import resolve
from megatron.config.refused import IDLE, REFUSED
from megatron.config.validate import GROUP_OF
from tests.config.config_files import BASE, base, write


def load(folder, text, *overrides):
    return load_config([write(folder, BASE + text)], overrides)


def refusal(folder, text):
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("gas: 3", "training.gradient_accumulation_steps", 3),
        ("gradient_accumulation-steps: 3", "training.gradient_accumulation_steps", 3),
        ("clip-grad: 0.5", "optimizer.gradient_clipping", 0.5),
        ("save-interval: 7\nsave: x", "checkpoint.checkpoint_factor", 7),
        ("zero_stage: 2", "optimizer.zero_optimization.stage", 2),
        ("zero_optimization: {cpu_offload: False}", "optimizer.zero_optimization.offload_optimizer.device", "none"),
        ("zero_optimization: {cpu_offload: true}", "optimizer.zero_optimization.offload_optimizer.device", "cpu"),
        ("bfloat16: {enabled: true}", "precision.bf16.enabled", True),
        ("loss_scale: 128", "precision.fp16.loss_scale", 128),
        ("precision: bf16", "precision.precision", "bfloat16"),
        ("activation: swish", "model.activation", "silu"),
        ("peak_theoretical_tflops: 312", "logging.peak_tflops", 312),
        ("mlp_width: 16", "positional.dape_hidden_size", 16),
        ("mlp_width: 16", "positional.fire_hidden_size", 16),
        ("noise_seq_length: 128", "positional.fire_threshold", 64),
        ("noise_seq_length: 512", "positional.fire_threshold", 256),
        ("capev2_kernel: 5", "positional.dape_kernel_size", 5),
        ("seq-length-val: 2048", "evaluation.eval_lengths", [2048]),
    ],
)
def test_other_names(tmp_path, text, key, value):
    item = load(tmp_path, text)
    for part in key.split("."):
        item = getattr(item, part)
    assert item == value


def test_older_spellings_inside_the_optimizer(tmp_path):
    config = base(tmp_path, "optimizer={type: adam, params: {lr: 1e-3, max_grad_norm: 0.7}}")
    assert config.optimizer.optimizer.type == "Adam"
    assert config.optimizer.gradient_clipping == 0.7


@pytest.mark.parametrize(
    ("theirs", "ours", "kernel"),
    [
        ("kerple_c", "dape_kerple", 1),
        ("alibi_c", "dape_alibi", 1),
        ("fire_c", "dape_fire", 1),
        ("nope_c", "dape_none", 1),
        ("kerple_dapev2", "dape_kerple", 3),
        ("alibi_dapev2", "dape_alibi", 3),
        ("fire_dapev2", "dape_fire", 3),
        ("alibi_capev2", "dape_alibi", 3),
        ("nope_c_ffn", "dape_none", 3),
        ("rope_dapev1", "dape_rotary", 1),
        ("rope_dapev2", "dape_rotary", 3),
        ("kerple", "kerple", 1),
        ("xl_bias", "xl_bias", 1),
    ],
)
def test_the_published_names_of_positional_encodings(tmp_path, theirs, ours, kernel):
    positional = load(tmp_path, f"pos-emb: {theirs}").positional
    assert (positional.pos_emb, positional.dape_kernel_size) == (ours, kernel)


def test_the_published_kernel_key_may_be_in_another_file(tmp_path):
    files = [write(tmp_path, BASE + "pos_emb: fire_dapev2", "a.yml"), write(tmp_path, "dapev2_kernel: 7", "b.yml")]
    assert load_config(files).positional.dape_kernel_size == 7
    assert load_config(files, ["pos_emb=dape_alibi"]).positional.pos_emb == "dape_alibi"


def test_a_kernel_that_the_published_name_does_not_have_is_refused(tmp_path):
    text = refusal(tmp_path, "pos_emb: kerple_c\ndapev2_kernel: 3")
    assert ":10: dapev2_kernel: kerple_c" in text and "has kernel 1; write pos_emb: dape_kerple" in text


def test_wrong_types_are_reported_under_the_name_that_was_written(tmp_path):
    assert "noise_seq_length: must be a whole number" in refusal(tmp_path, "noise_seq_length: many")
    assert "gas: must be a whole number" in refusal(tmp_path, "gas: 'two'")


@pytest.mark.parametrize(
    "text",
    [
        "scaled-upper-triang-masked-softmax-fusion: true",
        "bias_gelu_fusion: true",
        "rope_fusion: true",
        'attention_config: [[["global"], 2]]',
        "attention_config: [[[flash], 2]]",
        "partition-activations: true",
        "synchronize-each-layer: true",
        "steps_per_print: 10",
        "hostfile: /mock_path",
        "launcher: slurm",
        "zero_allow_untested_optimizer: true",
        "dynamic_loss_scale: true",
    ],
)
def test_keys_without_effect_are_accepted_and_noted(tmp_path, text):
    config = load(tmp_path, text)
    name = text.partition(":")[0].replace("-", "_")
    assert [notice for notice in config.notices if f":9: {name} has no effect: " in notice] == list(config.notices) != []
    assert config == base(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "bias_gelu_fusion: false",
        "output_layer_parallelism: column",
        "deepspeed: true",
        "use_mup: false",
        "mup_init_scale: 1.0",
        "train_impl: normal",
        "attention_config: null",
        "recompute: false",
        "num_nodes: 1",
        "mlp_type: regular",
        "sparsity_config: {}",
    ],
)
def test_values_that_say_what_happens_anyway_are_accepted_in_silence(tmp_path, text):
    assert load(tmp_path, text).notices == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('attention_config: [[["global", "local"], 1]]', "only layers of kind global or flash"),
        ("attention_config: global", "only layers of kind global or flash"),
        ("attention_config: [[[], 1], 3]", "only layers of kind"),
        ("use_mup: true", "mu-parametrisation is not built"),
        ("mup_init_scale: 2", "mu-parametrisation is not built"),
        ("no_load_optim: true", "write `finetune: true`"),
        ("fp16_lm_cross_entropy: true", "always float32"),
        ("bias_gelu_fusion: 'true'", "must be true or false"),
        ("output_layer_parallelism: row", "split over the vocabulary"),
        ("mlp_type: llama", "`activation: swiglu`"),
        ("num_unique_layers: 1", "never share"),
        ("train_epochs: 1", "`train_iters`"),
        ("padded_vocab_size: 50304", "follows from the tokenizer"),
        ("te_mha: true", "Transformer Engine"),
        ("scheduler: {type: WarmupLR, params: {}}", "`lr_decay_style`"),
        ("flops_profiler: {enabled: true}", "always logged"),
        ("world_size: 2", "set by the launcher"),
        ("train_impl: dpo", "only pretraining"),
        ("deepspeed: false", "always runs on DeepSpeed"),
        ("use_comet: true", "Comet is not built"),
        ("checkpoint: {tag_validation: Warn}", "`save`"),
    ],
)
def test_what_is_missing_here_is_refused_with_the_reason(tmp_path, text, reason):
    lines = refusal(tmp_path, text).splitlines()
    assert len(lines) == 1
    name = text.partition(":")[0]
    assert lines[0].startswith(f"{tmp_path / 'run.yml'}:9: {name}") and "is not supported: " in lines[0] and reason in lines[0], lines


def test_every_refused_key_is_refused(tmp_path):
    for reason in REFUSED.values():
        assert reason.endswith(".") and "\n" not in reason
    text = "".join(f"{name}: 1\n" for name in REFUSED)
    lines = refusal(tmp_path, text).splitlines()
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == list(REFUSED)


def test_the_lists_do_not_overlap():
    foreign = [*IDLE, *REFUSED, *(name for name in [*KEYS, *COMPOUND] if "." not in name)]
    assert len(set(foreign)) == len(foreign)
    assert not set(foreign) & set(GROUP_OF)


def test_every_key_of_gpt_neox_is_known_by_name():
    # its neox_arguments.md, options that it computes itself included
    theirs = (Path(__file__).parent / "gpt_neox_keys.txt").read_text().split()
    known = {*GROUP_OF, *IDLE, *REFUSED, *KEYS, *COMPOUND}
    assert len(theirs) > 300
    assert [name for name in theirs if name not in known] == []


def test_the_style_of_the_kerple_code(tmp_path):
    text = (
        'fp16: {"enabled": True, "type": "bfloat16", "loss_scale": 0}\nfp32_allreduce: True\npos-emb: kerple_power_ap_\nsplit: "949,50,1"'
    )
    precision = load(tmp_path, text).precision
    assert precision.dtype == "bf16" and precision.fp32_allreduce


def test_every_published_positional_name_maps_to_a_map_over_a_known_one():
    for ours, _ in POSITIONAL.values():
        assert resolve(ours).mapped
