"""What follows from other keys, and combinations that cannot be."""

import subprocess
import sys

import pytest

from megatron.config import ConfigError, load_config
from megatron.config.derive import complete
from tests.config.config_files import BASE, ROOT, base, write


def test_what_follows(tmp_path):
    config = complete(base(tmp_path, "save=out/"), 2, cuda=False)
    assert config.model.max_position_embeddings == 16
    assert config.model.num_kv_heads == 2
    assert config.model.intermediate_size == 32
    assert config.optimizer.lr_decay_iters == 10
    assert config.positional.fire_threshold == 8
    assert config.logging.log_dir == "out/logs"
    assert config.precision.precision == "fp32"
    assert (config.training.train_batch_size, config.training.gradient_accumulation_steps) == (8, 1)
    assert complete(base(tmp_path), 1).logging.log_dir == "logs"


def test_completing_twice_changes_nothing(tmp_path):
    for extra in ((), ("pos_emb=none", "activation=swiglu", "mlp_multiple_of=16", "fp16={enabled: true, type: bfloat16}")):
        once = complete(base(tmp_path, *extra), 2)
        assert complete(once, 2) == once


@pytest.mark.parametrize(
    ("overrides", "lengths"),
    [
        (["pos_emb=none"], [16, 32, 64, 128, 256]),
        (["pos_emb=learned"], [16]),
        (["pos_emb=learned", "max_position_embeddings=64"], [16, 32, 64]),
        (["pos_emb=dape_learned", "max_position_embeddings=40"], [16, 32]),
        (["pos_emb=rotary", "eval_lengths=[8, 16]"], [8, 16]),
    ],
)
def test_evaluation_lengths(tmp_path, overrides, lengths):
    assert complete(base(tmp_path, *overrides), 1).evaluation.eval_lengths == lengths


@pytest.mark.parametrize(
    ("given", "processes", "expected"),
    [  # micro batch, accumulation, whole batch -> the three
        ((4, None, None), 2, (4, 1, 8)),
        ((4, 3, None), 2, (4, 3, 24)),
        ((4, None, 24), 2, (4, 3, 24)),
        ((None, 3, 24), 2, (4, 3, 24)),
        ((None, None, 24), 2, (12, 1, 24)),
        ((4, 3, 24), 2, (4, 3, 24)),
    ],
)
def test_batch_arithmetic(tmp_path, given, processes, expected):
    training = complete(base(tmp_path, *batch(given)), processes).training
    assert (training.train_micro_batch_size_per_gpu, training.gradient_accumulation_steps, training.train_batch_size) == expected


@pytest.mark.parametrize(
    ("given", "processes", "words"),
    [
        ((4, 3, 25), 2, "25 is not 24 = train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 3 x 2 data-parallel processes"),
        ((4, 3, 24), 4, "24 is not 48"),
        ((4, None, 10), 2, "10 cannot be divided by micro batch 4 x 2"),
        ((None, 3, 25), 2, "25 cannot be divided by 2 data-parallel processes x gradient_accumulation_steps 3"),
        ((None, 3, None), 2, "give it or train_batch_size"),
        ((None, None, None), 1, "give it or train_batch_size"),
    ],
)
def test_impossible_batches(tmp_path, given, processes, words):
    text = refusal(base(tmp_path, *batch(given)), processes)
    assert words in text and len(text.splitlines()) == 1


def test_the_batch_stays_open_without_a_number_of_processes(tmp_path):
    config = base(tmp_path, *batch((None, 3, 25)), "fp16.enabled=true")
    assert complete(config, None).training == config.training


def batch(given) -> list[str]:
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    return [f"{key}={'null' if value is None else value}" for key, value in zip(keys, given, strict=True)]


def refusal(config, world_size=1, cuda=None) -> str:
    with pytest.raises(ConfigError) as caught:
        complete(config, world_size, cuda=cuda)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["num_attention_heads=3"], "num_attention_heads", "3 heads do not divide hidden_size 8"),
        (["num_kv_heads=3"], "num_kv_heads", "3 key/value heads do not divide"),
        (["num_kv_heads=4"], "num_kv_heads", "4 key/value heads do not divide"),
        (["gpt_j_tied=true"], "gpt_j_tied", "gpt_j_residual"),
        (["max_position_embeddings=8"], "seq_length", "16 is longer than the learned position table (max_position_embeddings 8)"),
        (["eval_lengths=[16, 32]"], "eval_lengths", "32 is longer than the learned position table"),
        (["eval_lengths=[0]", "pos_emb=none"], "eval_lengths", "at least 2 tokens, not 0"),
        (["eval_lengths=[8, 16, 8]"], "eval_lengths", "8 is there 2 times; keep one"),
        (["eval_lengths=[9999999999]", "pos_emb=none"], "eval_lengths", "at most 1000000000 tokens, not 9999999999"),
        (["eval_protocols=[last, last]"], "eval_protocols", "last is there 2 times; keep one"),
        (["eval_protocols=[sliding]", "eval_lengths=[8, 16]", "eval_stride=9"], "eval_stride", "9 is more than the shortest length, 8"),
        (["eval_protocols=[information_gain]", "eval_lengths=[8, 16]"], "eval_protocols", "no length of eval_lengths (--set) is more"),
        (["dape_kernel_size=2"], "dape_kernel_size", "must be odd"),
        (["pos_emb=dape_rope", "dape_form=s+b+f(b)"], "dape_form", "pos_emb: dape_rope has none"),
        (["pos_emb=dape_kerpel"], "pos_emb", "Nearest: dape_kerple"),
        (["pos_emb=rotary", "rotary_pct=0.8"], "rotary_pct", "in pairs"),
        (["pos_emb=dape_rope", "rotary_pct=0.1"], "rotary_pct", "in pairs"),
        (["pos_emb=sinusoidal", "hidden_size=9", "num_attention_heads=3"], "hidden_size", "must be even"),
        (["pos_emb=t5", "rpe_max_distance=16"], "rpe_max_distance", "more than half of rpe_num_buckets"),
        (["optimizer.params.betas=[0.9, 1.0]"], "optimizer.params.betas", "from 0 to below 1, not 1.0"),
        (["optimizer.params.betas=[-0.1, 0.9]"], "optimizer.params.betas", "not -0.1"),
        (["min_lr=1e-3"], "min_lr", "0.001 is more than the peak rate"),
        (
            ["zero_optimization={stage: 2, stage3_prefetch_bucket_size: 1}"],
            "zero_optimization.stage3_prefetch_bucket_size",
            "only with stage 3",
        ),
        (["zero_optimization={stage: 2, offload_param: {device: cpu}}"], "zero_optimization.offload_param.device", "only with stage 3"),
        (
            ["zero_optimization={stage: 0, offload_optimizer: {device: cpu}}"],
            "zero_optimization.offload_optimizer.device",
            "stage 1, 2 or 3",
        ),
        (["data_path=''"], "data_path", "must not hold an empty text"),
        (["train_data_paths=[a, '']"], "train_data_paths", "must not hold an empty text"),
        (["data_path=a", "train_data_paths=[b]"], "data_path", "cannot stand beside train_data_paths (--set)"),
        (["train_data_paths=[a, b]", "train_data_weights=[1]"], "train_data_weights", "1 weights for 2 prefixes"),
        (["valid_data_weights=[1]"], "valid_data_weights", "1 weights for 0 prefixes"),
        (["train_data_paths=[a]", "train_data_weights=[-1]"], "train_data_weights", "not be negative"),
        (["train_data_paths=[a]", "train_data_weights=[1]", "weight_by_num_documents=true"], "train_data_weights", "not both"),
        (["data_path=[1, a, b]"], "data_path", "weight, prefix"),
        (["data_path=[0, a]"], "data_path", "not all 0"),
        (["split='1,2,3,4'"], "split", "one to three shares"),
        (["split=a"], "split", "one to three shares"),
        (["split='0,0'"], "split", "not all 0"),
        (["checkpoint_factor=5"], "checkpoint_factor", "give a folder with `save`"),
        (["extra_save_iters=[5]"], "extra_save_iters", "give a folder with `save`"),
        (["checkpoint_factor=2.5", "save=x"], "checkpoint_factor", "whole number of steps"),
        (["checkpoint_factor=1", "save=x", "checkpoint_scale=log"], "checkpoint_factor", "more than 1"),
        (["extra_save_iters=[0]", "save=x"], "extra_save_iters", "no step 0"),
        (["iteration=5"], "iteration", "give a folder with `load`"),
        (["finetune=true"], "finetune", "give a folder with `load`"),
        (["model_parallel_size=2"], "model_parallel_size", "not built yet"),
        (["pipe_parallel_size=2"], "pipe_parallel_size", "not built yet"),
        (["precision=fp32", "fp16.enabled=true"], "precision", "fp16.enabled (--set) says fp16"),
        (["fp16.enabled=true", "bf16.enabled=true"], "fp16.enabled", "bf16.enabled (--set) says bf16"),
        (["precision=bfloat16", "bf16.enabled=false"], "precision", "bf16.enabled (--set) says fp32"),
        (["fp16.enabled=true", "device=cpu"], "fp16.enabled", "needs a GPU"),
    ],
)
def test_impossible_combinations(tmp_path, overrides, key, words):
    for world_size in (None, 1):
        text = refusal(base(tmp_path, *overrides), world_size)
        assert len(text.splitlines()) == 1, text
        assert f"{key}: " in text and words in text, text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["fp16.enabled=true"], "--set: fp16.enabled: fp16 training needs a GPU; on a CPU use float32 (--set fp16.enabled=false) or bf16."),
        (["precision=fp16"], "--set precision=fp32"),
        (["device=cuda"], "no GPU was found"),
        (["zero_optimization={stage: 3, offload_param: {device: cpu}}"], "needs a GPU to offload from"),
    ],
)
def test_what_needs_a_gpu(tmp_path, overrides, words):
    config = base(tmp_path, *overrides)
    assert words in refusal(config, 1, cuda=False)
    complete(config, 1, cuda=True)


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        (["precision=fp16"], "fp16"),
        (["precision=fp16", "fp16.loss_scale=128"], "fp16"),
        (["fp16.enabled=true"], "fp16"),
        (["fp16={enabled: true, type: bfloat16}"], "bf16"),
        (["bf16.enabled=true", "precision=bfloat16"], "bf16"),
        (["fp16.enabled=false"], "fp32"),
        ([], "fp32"),
    ],
)
def test_the_spellings_of_precision_agree_afterwards(tmp_path, overrides, dtype):
    precision = complete(base(tmp_path, *overrides), 1, cuda=True).precision
    assert precision.dtype == dtype
    assert (precision.fp16.enabled, precision.bf16.enabled) == (dtype == "fp16", dtype == "bf16")
    assert precision.precision == {"fp32": "fp32", "fp16": "fp16", "bf16": "bfloat16"}[dtype]


def test_problems_name_the_line_and_come_all_at_once(tmp_path):
    path = write(tmp_path, BASE.replace("num_attention_heads: 2", "num-attention-heads: 3") + "min-lr: 1\n")
    lines = refusal(load_config([path])).splitlines()
    assert lines[0].startswith(f"{path}:4: num_attention_heads: 3 heads do not divide hidden_size 8 ({path}:3)")
    assert lines[1].startswith(f"{path}:9: min_lr: ")
    assert len(lines) == 2


def test_nothing_heavy_is_imported():
    code = (
        "import sys, megatron.config; from megatron.config import derive, deepspeed, dump, command_line;"
        "print(sorted({'torch', 'deepspeed', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
