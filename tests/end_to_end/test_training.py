"""Training through the real launcher with two real processes: files, exit codes, layouts, launchers."""

import json
import math
import signal
import subprocess
import sys

import pytest
import yaml

TRAINING_KEYS = {"step", "lm_loss", "learning_rate", "grad_norm", "loss_scale", "tokens", "tokens_per_second", "seconds", "tflops"}
EVALUATION_KEYS = {"step", "split", "protocol", "eval_length", "scored_tokens", "loss", "perplexity", "stderr"}


def test_two_processes_train_evaluate_and_leave_every_documented_file(make_run):
    run = make_run(pos_emb="dape_kerple", train_iters=8, checkpoint_factor=4, eval_interval=4, tensorboard_dir="unset")
    done = run.start(f"tensorboard_dir={run.folder}/tensorboard")
    assert done.returncode == 0, done.stdout
    training = [line for line in run.metrics() if "lm_loss" in line]
    evaluation = [line for line in run.metrics() if "perplexity" in line]
    assert [line["step"] for line in training] == list(range(1, 9))
    assert all(set(line) >= TRAINING_KEYS for line in training) and all(set(line) >= EVALUATION_KEYS for line in evaluation)
    assert training[-1]["tokens"] == 8 * 4 * 32 and training[-1]["lm_loss"] < training[0]["lm_loss"]
    assert [(line["step"], line["split"], line["eval_length"]) for line in evaluation] == [
        (step, split, length) for step, split in ((4, "valid"), (8, "valid"), (8, "test")) for length in (32, 64)
    ]
    assert len({line["scored_tokens"] for line in evaluation if line["split"] == "valid"}) == 1
    assert all(line["perplexity"] == pytest.approx(math.exp(line["loss"])) for line in evaluation)
    positional = {line["step"]: line["positional"] for line in run.metrics() if "positional" in line}
    assert [line["step"] for line in run.metrics() if "positional" in line] == [4, 8]  # once an evaluation, not once a split
    assert list(positional[8]) == ["layer0", "layer1"] and positional[4]["layer1"].keys() == positional[8]["layer1"].keys()
    assert positional[8]["layer0"].keys() >= {"a_mean", "p_max", "effective_length_head3", "dape_hidden_weight_norm"}
    assert all(positional[4][layer]["a_mean"] != positional[8][layer]["a_mean"] for layer in positional[8])
    results = json.loads((run.folder / "logs/results.json").read_text())
    assert results["results"] == [line for line in evaluation if line["step"] == 8]
    save = run.folder / "checkpoints"
    assert (save / "latest").read_text() == "global_step8"
    manifest = json.loads((save / "global_step4/manifest.json").read_text())
    assert manifest["step"] == 4 and manifest["files"]
    assert list((run.folder / "tensorboard").rglob("events*"))
    assert not list(run.folder.rglob(".writing*"))
    # the resolved configuration starts the same run again
    again = make_run("again")
    again.config.write_text((run.folder / "logs/config.yml").read_text())
    moved = {key: f"{again.folder}/{folder}" for key, folder in (("save", "checkpoints"), ("load", "checkpoints"), ("log_dir", "logs"))}
    assert again.start(*(f"{key}={value}" for key, value in moved.items()), "train_iters=3", "lr_decay_iters=8").returncode == 0
    assert again.losses() == {step: loss for step, loss in run.losses().items() if step <= 3}
    assert yaml.safe_load((save / "config.yml").read_text())["hidden_size"] == 32


def test_one_process_with_accumulation_equals_two_processes(make_run):
    random = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "position_sampling": "randomized", "position_max": 300}
    two, one = make_run("two", **random), make_run("one", **random, num_gpus=1, gradient_accumulation_steps=2)
    assert two.start().returncode == 0 and one.start().returncode == 0
    assert one.losses() == pytest.approx(two.losses(), rel=1e-5)
    evaluated = [[line["loss"] for line in run.metrics() if line.get("protocol") == "last"] for run in (one, two)]
    assert len(evaluated[0]) == 4 and evaluated[0] == pytest.approx(evaluated[1], rel=1e-4)


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_stages_give_the_same_curve(make_run, stage):
    first, other = make_run("first", eval_interval=3), make_run("other", eval_interval=3, zero_optimization={"stage": stage})
    assert first.start().returncode == 0
    done = other.start()
    assert done.returncode == 0, done.stdout
    assert other.losses() == pytest.approx(first.losses(), rel=1e-4)
    positional = [[line for line in run.metrics() if "positional" in line] for run in (first, other)]
    assert [line["step"] for line in positional[0]] == [line["step"] for line in positional[1]] == [3, 6]
    for before, after in zip(*positional, strict=True):
        for layer, figures in before["positional"].items():
            assert after["positional"][layer] == pytest.approx(figures, rel=1e-3)


def test_plain_python_and_torchrun_start_the_same_run(make_run):
    plain, run = make_run("plain", num_gpus=None), make_run("torchrun", num_gpus=None)
    done = plain.start(launcher=())
    assert done.returncode == 0, done.stdout
    done = run.start(launcher=("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"))
    assert done.returncode == 0, done.stdout
    assert run.losses() == plain.losses()


def test_bf16_with_activation_checkpointing_trains_on_a_cpu(make_run):
    run = make_run(precision="bfloat16", checkpoint_activations=True, train_iters=10)
    done = run.start()
    assert done.returncode == 0, done.stdout
    losses = run.losses()
    assert losses[10] < losses[1]


def test_a_non_finite_loss_ends_the_run_on_all_ranks_and_says_so(make_run):
    run = make_run(optimizer={"type": "Adam", "params": {"lr": 1.0e30}}, train_iters=20, warmup=0.0)
    done = run.start()
    assert done.returncode == 1
    assert "No process took this step" in done.stdout and "Traceback" not in done.stdout


def test_sigterm_finishes_the_step_saves_and_says_resume_me(make_run):
    run = make_run(train_iters=100_000)
    process = run.popen()
    for line in process.stdout:
        if "loss" in line and "step" in line:
            break
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 75, rest
    step = max(run.losses())
    assert (run.folder / "checkpoints/latest").read_text() == f"global_step{step}"
    assert run.start(f"train_iters={step + 2}", "lr_decay_iters=100000").returncode == 0
    assert max(run.losses()) == step + 2


def test_sigterm_during_an_evaluation_breaks_it_off_and_saves(make_run):
    run = make_run(train_iters=10, eval_interval=2, eval_sequences=2000, eval_lengths=[32, 256], split="50,50,0")
    process = run.popen()
    for line in process.stdout:
        if "step 2/" in line:
            break
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 75, rest
    assert (run.folder / "checkpoints/latest").read_text() == "global_step2"
    assert not [line for line in run.metrics() if "perplexity" in line]


def test_evaluation_and_generation_of_a_checkpoint(make_run):
    run = make_run()
    assert run.start().returncode == 0
    trained = json.loads((run.folder / "logs/results.json").read_text())
    done = run.start(f"log_dir={run.folder}/evaluated", "eval_lengths=[64, 128]", script="eval.py")
    assert done.returncode == 0, done.stdout
    evaluated = json.loads((run.folder / "evaluated/results.json").read_text())
    assert evaluated["step"] == 6 and {line["eval_length"] for line in evaluated["results"]} == {64, 128}
    assert trained["training_length"] == evaluated["training_length"] == 32
    lines = [json.loads(line) for line in (run.folder / "evaluated/metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if "positional" in line] == [line for line in run.metrics() if "positional" in line]
    out = run.folder / "samples.jsonl"
    done = run.start(
        f"sample_output_file={out}", "temperature=1.0", "maximum_tokens=12", "num_samples=2", script="generate.py", launcher=()
    )
    assert done.returncode == 0, done.stdout
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(samples) == 2 and all(sample["text"] for sample in samples)
    prompts = run.folder / "prompts.jsonl"
    prompts.write_text('{"text": "def f(\u2028"}\n\n{"text": "import"}\n')
    done = run.start(
        "text_gen_type=input-file", f"sample_input_file={prompts}", f"sample_output_file={out}", "maximum_tokens=3", script="generate.py"
    )
    assert done.returncode == 0, done.stdout
    assert [json.loads(line)["context"] for line in out.read_text().splitlines()] == ["def f(\u2028", "import"]
    done = subprocess.run(run.command("text_gen_type=interactive", script="generate.py"), **run.options(), input="x\n", timeout=300)
    assert done.returncode == 0 and "'x'" in done.stdout, done.stdout


def test_an_evaluation_whose_loss_is_not_finite_is_no_success(make_run):
    """Weights that overflow in the first product: the figures are written, and the exit code says that they are none."""
    run = make_run(num_gpus=1, train_iters=1, warmup=0.0, optimizer={"type": "Adam", "params": {"lr": 1.0e25}}, lr_decay_style="constant")
    done = run.start()
    assert done.returncode == 1, done.stdout
    assert "error: the loss is not finite: valid at 32, valid at 64" in done.stdout and "Traceback" not in done.stdout
    assert (run.folder / "logs/results.json").exists()


@pytest.mark.parametrize(
    "changes, overrides, says",
    [
        ({"hiden_size": 32}, (), "hidden_size"),
        ({"num_attention_heads": 5}, (), "num_attention_heads"),
        ({"pos_emb": "kerpel"}, (), "kerple"),
        ({"optimizer": {"type": "Adam", "params": {"lrr": 1.0}}}, (), "lrr"),
        ({"fp16": {"enabled": True}}, (), "fp16"),
        ({"data_path": "/nowhere/text"}, (), "/nowhere/text"),
        ({"load": "/nowhere/checkpoints"}, (), "/nowhere/checkpoints"),
        ({"eval_lengths": [32, 100_000_000]}, (), "eval_lengths"),
        ({"split": "100,0,0"}, (), "validation"),
        ({}, ("nonsense=1",), "nonsense"),
        ({}, ("seed=2", "--", "more"), "more"),
        ({"pos_emb": "dape_kerple", "attention_backend": "sdpa"}, (), "run.yml:1: attention_backend: sdpa cannot do"),
        ({"pos_emb": "rotary", "trainable": "positional"}, (), "trainable: positional: nothing would be trained"),
    ],
)
def test_a_users_mistake_is_one_message_and_exit_code_2(make_run, changes, overrides, says):
    run = make_run(**changes)
    done = run.start(*overrides)
    assert done.returncode == 2, done.stdout
    assert says in done.stdout and "Traceback" not in done.stdout
    assert done.stdout.count("error") >= 1 and done.stdout.count("error: ") == 1
    assert sorted(path.name for path in run.folder.iterdir()) == ["run.yml"]


def test_configuration_mistakes_are_found_without_importing_torch(make_run):
    run = make_run(num_attention_heads=5)
    code = (
        "import sys; sys.argv = ['train.py', sys.argv[1]]\n"
        "from megatron.launch.entry import read_run\n"
        "try: read_run(sys.argv[1:])\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules, 'deepspeed' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.config)], **run.options(), timeout=60)
    assert done.stdout.split() == ["ConfigError", "False", "False"]
