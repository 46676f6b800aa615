"""tools/benchmark/plan.py: its formulas against hand-computed numbers and against what autograd keeps, and the tool as users call it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron.config import load_config
from megatron.config.optimizer import ZeroConfig
from megatron.model.gpt import GPT
from megatron.model.init import initialise
from tools.benchmark.planning.assumptions import Assumptions
from tools.benchmark.planning.communication import exchange_bytes, gradient_bytes, map_gradient_bytes, tensor_parallel_bytes, weight_bytes
from tools.benchmark.planning.memory import activation_bytes, attention_bytes, block_bytes, bucket_bytes, logit_bytes, model_states
from tools.benchmark.planning.shape import Layout, Shape, read_shape
from tools.benchmark.planning.speed import seconds, training_flops

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ("-d", "configs", "recipes/dape_2-7B_512.yml")
HIDDEN, LAYERS, HEADS, VOCABULARY = 2560, 32, 32, 50304  # of the recipe
MAPS = LAYERS * (2 * HEADS * 32 + 32 + 32 * HEADS + HEADS)
PARAMETERS = LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN + 2 * HEADS) + MAPS + 2 * HIDDEN + 2 * VOCABULARY * HIDDEN

SMALL = Shape(
    split=1000,
    replicated=24,
    trained_share=1,
    item=2,
    adam=True,
    momentum=False,
    layers=3,
    hidden=8,
    heads=4,
    attended=8,
    keys=8,
    mlp=32,
    gated=False,
    norms=2,
    residuals=2,
    rotates=False,
    dropout=False,
    length=10,
    vocabulary=50,
    backend="blockwise",
    bias=True,
    channels=8,
    map_width=6,
    kernel=1,
    recompute=False,
    segment=1,
    forward_flops=100,
    map_flops=7,
    head_flops=30,
)


def states(shape: Shape, gpus: int, stage: int) -> tuple[float, ...]:
    return tuple(model_states(1000, 1000, shape, Layout(gpus, 1, stage)).values())


def test_adam_in_mixed_precision_takes_sixteen_bytes_a_parameter_and_zero_divides_them():
    assert states(SMALL, 8, 0) == (2000, 2000, 12000)
    assert states(SMALL, 8, 1) == (2000, 2000, 1500)
    assert states(SMALL, 8, 2) == (2000, 250, 1500)
    assert states(SMALL, 8, 3) == (250, 250, 1500)


def test_other_formats_and_optimisers():
    single = replace(SMALL, item=4)
    assert states(single, 4, 0) == (4000, 4000, 8000)
    assert states(single, 4, 1) == (4000, 4000, 3000)  # ZeRO's own copy of its part
    assert states(replace(SMALL, adam=False, momentum=True), 1, 1)[2] == 8000
    assert states(replace(SMALL, adam=False), 1, 1)[2] == 4000
    half_trained = model_states(1000, 500, SMALL, Layout(1, 1, 1))
    assert half_trained == {"weights": 2000, "gradients": 1000, "optimiser": 6000}


def test_tensor_parallelism_splits_what_it_can():
    assert SMALL.parameters(4) == 1000 / 4 + 24


def test_buckets():
    zero = ZeroConfig(stage=1, reduce_bucket_size=100, stage3_max_live_parameters=300)
    assert bucket_bytes(1000, 2, 0, zero) == 0
    assert bucket_bytes(1000, 2, 1, zero) == 200
    assert bucket_bytes(1000, 2, 2, zero.model_copy(update={"overlap_comm": True})) == 400
    assert bucket_bytes(1000, 2, 3, zero) == 200 + 600
    assert bucket_bytes(50, 2, 3, zero) == 100 + 100


def test_logits_and_their_float32_copies():
    assert logit_bytes(tokens=20, hidden=8, vocabulary=50, item=2) == 2 * (2 * 20 * 8 + 1000) + 8 * 1000
    assert logit_bytes(2**20, 1, 2**10, 2) == 2 * (2**21 + 2**30) + 8 * 2**28


def test_recomputed_blocks_leave_their_inputs():
    """A block keeps 4 x 8 whole and 8 + 16 + 64 + 8 split elements of 2 bytes, 8 of 4, and two norms' statistics, for each token."""
    block = 20 * (2 * 4 * 8 + 16 + 2 * (8 + 16 + 64 + 8) + 4 * 8)
    assert block_bytes(SMALL, 20, 1) == block
    workspace = activation_bytes(replace(SMALL, layers=0), Layout(1, 1, 1, micro_batch=2)) - block
    assert activation_bytes(SMALL, Layout(1, 1, 1, micro_batch=2)) == 4 * block + workspace
    recomputed = replace(SMALL, recompute=True, segment=2)  # two segments
    assert activation_bytes(recomputed, Layout(1, 1, 1, micro_batch=2)) == 2 * 20 * 8 * 2 + 3 * block + workspace


def test_tensor_parallelism_splits_what_lies_between_norms_and_residuals():
    plain = replace(SMALL, channels=0)
    assert block_bytes(plain, 20, 2) == 20 * (2 * 4 * 8 + 16 + (2 * (8 + 16 + 64 + 8) + 4 * 8) / 2)
    assert block_bytes(SMALL, 20, 2) - block_bytes(plain, 20, 2) == 20 * 2 * 8  # half of the keys and values besides


def test_pairs_of_positions():
    assert attention_bytes(SMALL, 2, 1) == 0
    assert attention_bytes(replace(SMALL, backend="flash"), 2, 1) == 0
    assert attention_bytes(replace(SMALL, backend="sdpa"), 2, 1) == 2 * 4 * 100
    assert attention_bytes(replace(SMALL, backend="sdpa", bias=False), 2, 1) == 0
    assert attention_bytes(replace(SMALL, backend="eager", channels=0), 2, 1) == 2 * 100 * 4 * (4 + 2)
    assert attention_bytes(replace(SMALL, backend="eager"), 2, 1) == 2 * 100 * (4 * 6 + 4 * (8 + 6))
    assert attention_bytes(replace(SMALL, backend="eager", kernel=3), 2, 2) == 2 * 50 * (4 * 6 + 4 * (24 + 24))


@pytest.mark.parametrize(
    "keys",
    [
        {"pos_emb": "dape_kerple"},
        {"pos_emb": "dape_kerple", "precision": "bfloat16"},
        {"pos_emb": "rotary", "attention_backend": "sdpa", "precision": "bfloat16"},
        {"pos_emb": "rotary", "attention_backend": "blockwise", "num_kv_heads": 2},
        {"pos_emb": "alibi", "activation": "swiglu", "gpt_j_residual": True, "gpt_j_tied": True},
        {"pos_emb": "alibi", "attention_backend": "eager"},
        {"pos_emb": "alibi", "attention_backend": "eager", "precision": "bfloat16"},
        {"pos_emb": "dape_alibi", "attention_backend": "eager"},
        {"pos_emb": "dape_none", "attention_backend": "eager", "dape_kernel_size": 3, "precision": "bfloat16"},
    ],
)
def test_a_block_keeps_what_autograd_keeps(make_config, keys):
    sizes = {"hidden_size": 64, "seq_length": 128, "max_position_embeddings": 128, "num_layers": 3}
    config = make_config(**(sizes | keys))
    shape, batch = read_shape(config, 61), 4
    blocks = (kept(config, batch) - kept(make_config(**(sizes | keys | {"num_layers": 1})), batch)) / 2
    assert block_bytes(shape, batch * 128, 1) + attention_bytes(shape, batch, 1) == pytest.approx(blocks, rel=0.04)


def kept(config, batch: int) -> int:
    """Bytes of the memory that autograd keeps for the backward pass, parameters apart."""
    model = GPT(config, 61)
    initialise(model, config.model, 1)
    model.to(torch.bfloat16 if config.precision.dtype == "bf16" else torch.float32).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    seen = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(0, 61, (batch, config.model.seq_length + 1))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = model(tokens[:, :-1], tokens[:, 1:])
    assert losses.requires_grad
    return sum(tensor.untyped_storage().nbytes() for memory, tensor in seen.items() if memory not in own)


def test_gradients_and_weights_that_are_sent():
    def gradients(stage, accumulation=1, reduce_scatter=True):
        return gradient_bytes(800, Layout(8, 2, stage, 1, accumulation), reduce_scatter=reduce_scatter)

    assert gradients(0) == 2 * 800 * 3 / 4  # four replicas: all-reduce
    assert gradients(1) == gradients(1, accumulation=5) == 800 * 3 / 4
    assert gradients(1, reduce_scatter=False) == gradients(0)
    assert gradients(2, accumulation=5) == gradients(3, accumulation=5) == 5 * 800 * 3 / 4
    weights = [weight_bytes(800, 1, Layout(8, 2, stage, 1, 5)) for stage in range(4)]
    assert weights == [0, 600, 600, 2 * 5 * 600]
    assert weight_bytes(800, 0.5, Layout(8, 2, 1)) == 300


def test_tensor_parallel_traffic_and_the_exchange_of_heads():
    state = 20 * 8 * 2  # bytes of the hidden states
    assert tensor_parallel_bytes(SMALL, 20, 1) == 0
    assert tensor_parallel_bytes(SMALL, 20, 4) == (3 * 4 + 2) * 2 * state * 3 / 4
    assert tensor_parallel_bytes(replace(SMALL, recompute=True), 20, 4) == (3 * 6 + 2) * 2 * state * 3 / 4
    # to each of three others a quarter of my quarter of the queries, and of the result; of keys and values three quarters pass by
    forward = 2 * 3 * (state / 4 / 4) + 2 * state * 3 / 4
    assert exchange_bytes(SMALL, 20, 4) == 3 * 2 * forward
    assert exchange_bytes(replace(SMALL, recompute=True), 20, 4) == 3 * 3 * forward
    assert exchange_bytes(replace(SMALL, channels=0), 20, 4) == exchange_bytes(SMALL, 20, 1) == 0
    assert map_gradient_bytes(SMALL, Layout(8, 4, 1)) == 2 * 24 * 2 * 3 / 4


def test_seconds_of_a_step():
    machine = Assumptions(tflops=1e-9, efficiency=0.5, map_efficiency=0.1, nvlink=1e-6, network=1e-7, gpus_per_node=4)  # 1,000 FLOP/s
    assert training_flops(SMALL) == (300, 21)
    assert training_flops(replace(SMALL, recompute=True)) == (370, 28)
    sent = {"gradients": 1000, "weights": 500, "tensor_parallel": 300, "dape_exchange": 100}
    layout = Layout(8, 4, 1, micro_batch=2, accumulation=2)  # 80 tokens, 10 for each GPU; tensor parallelism stays in a node
    spent = seconds(SMALL, layout, sent, machine, overlap=False)
    assert spent == pytest.approx({"products": 6, "dape_map": 2.1, "data_parallel": 15, "tensor_parallel": 0.4, "step": 23.5})
    hidden = seconds(SMALL, layout, sent, machine, overlap=True)  # 8.1 seconds x 2 / 3 hide as much of the gradients' 10
    assert hidden["data_parallel"] == pytest.approx(15 - 5.4)
    sharded = seconds(SMALL, replace(layout, zero_stage=3), sent | {"gradients": 100}, machine, overlap=True)
    assert sharded["data_parallel"] == pytest.approx(6 - 5.4)


def call(*arguments):
    command = [sys.executable, "tools/benchmark/plan.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_plan_of_a_recipe(tmp_path):
    done = call(*RECIPE, "--gpus", 8, 64, "--tp", 1, 8, "--output", tmp_path / "plan.json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "on paper, not measured" in done.stdout and "efficiency 0.4" in done.stdout
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["parameters"] == PARAMETERS and found["assumptions"]["network"] == 25 and found["warnings"] == []
    rows = {(plan["gpus"], plan["tp"], plan["zero_stage"]): plan for plan in found["plans"]}
    assert rows.keys() == {(gpus, tp, stage) for gpus in (8, 64) for tp in (1, 8) for stage in (1, 2, 3)}  # fp16: stage 0 runs as 1
    assert [layout for layout, plan in rows.items() if plan["own"]] == [(8, 1, 1), (64, 1, 1)]
    held = {stage: rows[8, 1, stage]["memory_bytes"] for stage in (1, 2, 3)}
    assert [held[1][name] for name in ("weights", "gradients", "optimiser")] == [2 * PARAMETERS, 2 * PARAMETERS, 12 * PARAMETERS / 8]
    assert held[2]["gradients"] == held[3]["weights"] == 2 * PARAMETERS / 8
    assert held[1]["total"] == sum(size for name, size in held[1].items() if name != "total")
    own = rows[64, 1, 1]
    assert own["sent_bytes"]["total"] == pytest.approx(2 * 2 * PARAMETERS * 63 / 64) and own["batch"] == 256
    assert own["seconds"]["data_parallel"] == pytest.approx(own["sent_bytes"]["total"] / 25e9)
    assert own["tokens_per_second"] == pytest.approx(256 * 512 / own["seconds"]["step"])
    assert own["days"] == pytest.approx(50_000 * own["seconds"]["step"] / 86400)
    assert rows[8, 8, 1]["sent_bytes"]["dape_exchange"] > 0 == rows[8, 1, 1]["sent_bytes"]["dape_exchange"]


def test_what_does_not_fit_is_warned_of(tmp_path):
    options = ("--tp", 1, "--output", tmp_path / "plan.json", "--set", "train_batch_size=256")
    done = call(*RECIPE, "--gpus", 1, 6, 8, "--memory", 15, *options)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert [line.removeprefix("warning: ") for line in said] == json.loads((tmp_path / "plan.json").read_text())["warnings"]
    one, six, eight = said
    assert "1 GPUs" in one and "GiB of 15 and does not fit. None of the others fits" in one
    assert "6 GPUs" in six and "256 cannot be divided by" in six
    assert eight.endswith("Of the others these fit: tp 1 with ZeRO 3.")


def test_the_backend_decides_about_length():
    long = ("--gpus", 8, "--tp", 1, "--set", "seq_length=8192", "train_micro_batch_size_per_gpu=1")
    assert call(*RECIPE, *long).returncode == 0
    done = call(*RECIPE, *long, "attention_backend=eager")
    assert done.returncode == 1 and "does not fit" in done.stderr


def test_mistakes_are_one_message():
    for arguments, message in (
        (("absent.yml",), "absent.yml: no such file"),
        ((*RECIPE, "--efficiency", "0"), "--efficiency"),
        ((*RECIPE, "--set", "zero_optimization.offload_optimizer.device=cpu"), "counts nothing in host memory"),
    ):
        done = call(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_float32_has_its_own_peak(tmp_path):
    done = call(*RECIPE, "--tp", 1, "--set", "fp16.enabled=false", "--output", tmp_path / "plan.json")
    found = json.loads((tmp_path / "plan.json").read_text())
    assert done.returncode == 0 and found["assumptions"]["tflops"] == 19.5
    assert [plan["zero_stage"] for plan in found["plans"]] == [0, 1, 2, 3]


def test_readable_shapes_come_from_configurations():
    config = load_config(["recipes/dape_2-7B_512.yml"], [], "configs")
    shape = read_shape(config, 50257)
    assert shape.split + shape.replicated == PARAMETERS and shape.vocabulary == VOCABULARY
    assert (shape.backend, shape.channels, shape.map_width, shape.recompute, shape.item) == ("blockwise", 64, 32, True, 2)
