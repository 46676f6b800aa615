"""tools/ckpts/inspect.py as users call it, on checkpoints that two real processes saved under ZeRO 1 and 3."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 16,
    "pos_emb": "dape_kerple",
    "train_iters": 9,
    "train_micro_batch_size_per_gpu": 2,
    "make_vocab_size_divisible_by": 16,
    "optimizer.type": "Adam",
    "optimizer.params.lr": 0.01,
    "device": "cpu",
    "cpu_threads": 1,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of two runs' checkpoint folders, stage1 and stage3, and norms.json."""
    folder = tmp_path_factory.mktemp("saved")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(Path(__file__).with_name("saved_checkpoints.py")), str(folder)]
    keys = [f"{key}={json.dumps(value)}" for key, value in KEYS.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*launcher, *script, *keys], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    """The checkpoint of stage 1, to be damaged."""
    return Path(shutil.copytree(saved / "stage1", tmp_path / "run")) / "global_step7"


def call(*arguments):
    return subprocess.run(
        [sys.executable, "tools/ckpts/inspect.py", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("stage", [1, 3])
def test_parameters_are_those_that_the_processes_had(saved, tmp_path, stage):
    done = call(saved / f"stage{stage}", "--json", tmp_path / "findings.json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert f"step 7, 28 sequences, pos_emb dape_kerple, 2 process(es), ZeRO stage {stage}, fp32" in done.stdout
    found = json.loads((tmp_path / "findings.json").read_text())
    assert found["problems"] == [] and (found["step"], found["samples"]) == (7, 28)
    assert found["layout"] == {"processes": 2, "zero_stage": stage, "dtype": "fp32"}
    folder = saved / f"stage{stage}/global_step7"
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.pt")}
    assert {file["name"]: file["bytes"] for file in found["files"]} == sizes and found["bytes"] == sum(sizes.values())
    assert all(name in done.stdout for name in sizes)

    norms = json.loads((saved / "norms.json").read_text())[str(stage)]
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    tied = tensors.pop("head.weight")
    assert tied["same_as"] == "embedding.word_embeddings.weight" and tied["shape"] == [64, 32]
    assert {name: tensor["norm"] for name, tensor in tensors.items()} == pytest.approx(norms)
    hidden_weight = tensors["layers.1.attention.positional.score_map.hidden_weight"]
    assert (hidden_weight["shape"], hidden_weight["elements"], hidden_weight["dtype"]) == ([32, 8, 1], 256, "float32")
    assert found["parameters"] == sum(tensor["elements"] for tensor in tensors.values())
    assert found["norm"] == pytest.approx(sum(norm**2 for norm in norms.values()) ** 0.5)


def test_every_problem_is_named(copy, tmp_path):
    shards = sorted(copy.glob("*optim_states.pt"))
    shards[0].unlink()
    content = bytearray(shards[1].read_bytes())
    content[len(content) // 2] ^= 1
    shards[1].write_bytes(content)
    with (copy / "mp_rank_00_model_states.pt").open("ab") as file:
        file.write(b"more")
    (copy / "notes.txt").write_text("mine")
    done = call(copy, "--json", tmp_path / "findings.json")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = done.stderr.splitlines()
    assert json.loads((tmp_path / "findings.json").read_text())["problems"] == [line.removeprefix("damaged: ") for line in said]
    for path, words in (
        (shards[0], "missing"),
        (shards[1], "SHA-256"),
        (copy / "mp_rank_00_model_states.pt", "bytes, the manifest says"),
        (copy / "notes.txt", "superfluous"),
    ):
        assert len([line for line in said if str(path) in line and words in line]) == 1
    assert len(said) == 4 and "parameters were not read" in done.stdout


def test_what_is_there_too_much_hides_nothing(copy):
    (copy / "notes.txt").write_text("mine")
    renamed = copy.rename(copy.with_name("global_step9"))
    done = call(renamed.parent, "--step", 9)
    assert done.returncode == 1 and "superfluous" in done.stderr and "of another step than its content, 7" in done.stderr
    assert "layers.1.mlp.up.weight" in done.stdout


def test_what_is_no_checkpoint_is_one_message(saved, copy, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "global_step3").mkdir()
    (copy.parent / "global_step8").mkdir()
    for arguments, message in (
        ((tmp_path / "absent",), "no such folder"),
        ((tmp_path / "empty",), "no global_stepN folder"),
        ((tmp_path / "global_step3",), "no manifest.json"),
        ((copy.parent,), "global_step8: no manifest.json"),
        ((copy.parent, "--step", 5), "no checkpoint of step 5; it has 7, 8"),
        ((copy, "--step", 7), "--step"),
        ((copy, "--json", copy / "manifest.json/x"), "cannot be written"),
    ):
        done = call(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
