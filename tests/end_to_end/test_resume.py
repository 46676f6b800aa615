"""A resumed run equals the uninterrupted one; damaged, missing and foreign checkpoints; kill -9."""

import re
import shutil
import signal
import subprocess

import pytest


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ten_steps_resume_ten_steps_equal_twenty_straight_exactly(make_run, stage):
    """With dropout, accumulation, and across an epoch boundary: the text holds fewer than 20 steps' windows."""
    keys = {
        "zero_optimization": {"stage": stage},
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "train_iters": 20,
        "seq_length": 64,
        "eval_lengths": [64],
        "train_micro_batch_size_per_gpu": 4,
        "split": "10,40,50",
        "gradient_accumulation_steps": 2,
        "num_workers": 1,
    }
    straight, halves = make_run("straight", **keys), make_run("halves", **keys, exit_interval=10)
    done = straight.start()
    assert done.returncode == 0, done.stdout
    epoch = int(re.search(r"train ([\d,]+) tokens", done.stdout)[1].replace(",", ""))
    assert epoch < 20 * 16 * 64, "the text is too long for an epoch to end within the run"
    done = halves.start()
    assert done.returncode == 75, done.stdout
    assert sorted(halves.losses()) == list(range(1, 11))
    done = halves.start()
    assert done.returncode == 0, done.stdout
    assert halves.losses() == straight.losses() and len(straight.losses()) == 20


def test_checkpoints_missing_damaged_and_foreign(make_run):
    run = make_run(checkpoint_factor=3, train_iters=6)
    first = run.start()
    assert first.returncode == 0 and "from scratch" in first.stdout
    save = run.folder / "checkpoints"
    before = run.losses()
    # the newest is damaged: named, and the previous good one is taken
    victim = next((save / "global_step6").glob("*optim_states.pt"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    done = run.start()
    assert done.returncode == 0, done.stdout
    assert "damaged" in done.stdout and victim.name in done.stdout and "going on from global_step3" in done.stdout
    assert run.losses() == before
    # another layout is refused, in words
    done = run.start("num_gpus=1", "train_iters=8")
    assert done.returncode == 2 and "2 process(es)" in done.stdout and "Traceback" not in done.stdout
    # another model is refused, in words
    done = run.start("hidden_size=64", "train_iters=8")
    assert done.returncode == 2 and "hidden_size: 32 in the checkpoint, 64" in done.stdout and "Traceback" not in done.stdout
    written = (save / "config.yml").read_text()
    done = run.start("pos_emb=alibi", "sliding_window_width=16", "train_iters=8")
    assert done.returncode == 2 and "Traceback" not in done.stdout
    assert "pos_emb: kerple_log in the checkpoint, alibi in this run" in done.stdout and "sliding_window_width: None" in done.stdout
    assert (save / "config.yml").read_text() == written, "a refused run writes nothing"
    # finetune: weights only, steps from 1, elsewhere
    tuned = make_run("tuned", load=str(save), finetune=True, train_iters=2)
    done = tuned.start()
    assert done.returncode == 0, done.stdout
    assert sorted(tuned.losses()) == [1, 2] and tuned.losses()[1] < before[1]
    # and a finetuning run that was stopped goes on from its own checkpoints
    done = tuned.start("train_iters=3", "lr_decay_iters=2")
    assert done.returncode == 0 and sorted(tuned.losses()) == [1, 2, 3] and "next step 3" in done.stdout
    # another seed would not be the same run
    done = run.start("seed=5", "train_iters=8")
    assert done.returncode == 2 and "seed: 1234 in the checkpoint, 5 in this run" in done.stdout
    # all damaged: an error that names the part
    for folder in save.glob("global_step*"):
        (folder / "manifest.json").unlink()
    done = run.start("train_iters=8")
    assert done.returncode == 2 and "no manifest.json" in done.stdout
    # a new run never mixes with old checkpoints
    shutil.rmtree(save / "global_step6")
    done = run.start("load=null")
    assert done.returncode == 2 and "save" in done.stdout
    done = run.start(f"save={run.config}", f"load={run.config}")
    assert done.returncode == 2 and "cannot be written" in done.stdout and "Traceback" not in done.stdout


def test_kill_9_and_the_same_command_goes_on_to_the_same_curve(make_run):
    straight, killed = make_run("straight", train_iters=40, checkpoint_factor=2), make_run("killed", train_iters=40, checkpoint_factor=2)
    assert straight.start().returncode == 0
    process = killed.popen()
    for line in process.stdout:
        if "global_step6" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    done = killed.start()
    assert done.returncode == 0, done.stdout
    assert killed.losses() == straight.losses()
    assert not list(killed.folder.rglob(".writing*"))


def test_a_disk_that_fills_up_during_a_save_leaves_the_older_checkpoint_and_says_so(make_run):
    run = make_run(train_iters=4, checkpoint_factor=2)
    assert run.start().returncode == 0
    save = run.folder / "checkpoints"
    sizes = [path.stat().st_size for path in (save / "global_step4").glob("*.pt")]
    command = run.command("train_iters=6")
    limited = ["bash", "-c", f'ulimit -f {max(sizes) // 2048}; exec "$@"', "bash", *command]  # files may grow to half of what a save needs
    done = subprocess.run(limited, **run.options(), timeout=300)
    assert done.returncode == 2, done.stdout
    assert "could not be written" in done.stdout and "global_step6" in done.stdout and "Traceback" not in done.stdout
    assert (save / "latest").read_text() == "global_step4" and not (save / "global_step6").exists()
    assert run.start("train_iters=6").returncode == 0
    assert (save / "latest").read_text() == "global_step6" and not list(save.glob(".writing*"))
