"""Checkpoint folders: whole or not there, found, refused by name, fallen back over."""

import json
from dataclasses import asdict

import pytest

from megatron.training import checkpoint
from megatron.training.checkpoint import (
    CheckpointError,
    Layout,
    choose_checkpoint,
    damage,
    is_save_step,
    publish,
    remove_old,
    set_aside_later,
    temporary_folder,
)

LAYOUT = Layout(world_size=2, zero_stage=1, dtype="fp32")


def save(root, step, content=b"weights"):
    written = temporary_folder(root, step)
    (written / "model.pt").write_bytes(content)
    publish(written, root, step, LAYOUT, {name: checkpoint.file_record(written / name) for name in checkpoint.files_below(written)})
    return root / f"global_step{step}"


def test_a_published_checkpoint_is_whole_and_named_by_latest(tmp_path):
    folder = save(tmp_path, 10)
    assert damage(folder) is None
    assert (tmp_path / "latest").read_text() == "global_step10"
    assert json.loads((folder / "manifest.json").read_text())["files"]["model.pt"]["size"] == 7
    assert checkpoint.read_layout(folder) == LAYOUT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["global_step10", "latest"]


def test_an_unfinished_save_is_invisible_and_swept_away_by_the_next(tmp_path):
    save(tmp_path, 10)
    (temporary_folder(tmp_path, 20) / "model.pt").write_bytes(b"half")
    assert choose_checkpoint(tmp_path).step == 10
    save(tmp_path, 30)
    remove_old(tmp_path, keep=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["global_step10", "global_step30", "latest"]


def test_saving_the_same_step_again_replaces_it(tmp_path):
    save(tmp_path, 10, b"old")
    folder = save(tmp_path, 10, b"new")
    assert (folder / "model.pt").read_bytes() == b"new" and damage(folder) is None
    assert not list(tmp_path.glob(".writing*"))


@pytest.mark.parametrize(
    "harm, says",
    [
        (lambda f: (f / "model.pt").write_bytes(b"weight"), "6 bytes, the manifest says 7"),
        (lambda f: (f / "model.pt").write_bytes(b"weighty"[::-1]), "SHA-256"),
        (lambda f: (f / "model.pt").unlink(), "missing"),
        (lambda f: (f / "manifest.json").unlink(), "no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "not readable"),
        (lambda f: (f / "manifest.json").write_text(f'{{"files": {{}}, "layout": {json.dumps(asdict(LAYOUT))}}}'), "lists no files"),
        (lambda f: (f / "manifest.json").write_text("[]"), "not readable"),
        (lambda f: (f / "manifest.json").write_text('{"files": ["model.pt"]}'), "not readable"),
        (lambda f: (f / "manifest.json").write_text('{"files": {"model.pt": {"size": 7}}}'), "not readable"),
        (lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text().replace('"layout"', '"lay"')), "not readable"),
        (lambda f: ((f / "manifest.json").unlink(), (f / "manifest.json").mkdir()), "not readable"),
    ],
)
def test_damage_is_named_and_the_previous_good_one_is_taken(tmp_path, harm, says):
    save(tmp_path, 10)
    harm(save(tmp_path, 20))
    choice = choose_checkpoint(tmp_path)
    assert choice.step == 10
    assert says in choice.messages[0] and "global_step20" in choice.messages[0]
    assert "global_step10" in choice.messages[-1]
    with pytest.raises(CheckpointError, match="damaged"):
        choose_checkpoint(tmp_path, step=20)
    harm(tmp_path / "global_step10")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        choose_checkpoint(tmp_path)


def test_nothing_there_is_an_error_unless_the_run_may_start_anew(tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="load:"):
            choose_checkpoint(place)
        choice = choose_checkpoint(place, may_start_anew=True)
        assert choice.step is None and "from scratch" in choice.messages[0]


def test_latest_without_its_folder_is_never_a_fresh_start(tmp_path):
    (tmp_path / "latest").write_text("global_step40")
    with pytest.raises(CheckpointError, match="global_step40"):
        choose_checkpoint(tmp_path, may_start_anew=True)
    save(tmp_path, 10)
    (tmp_path / "latest").write_text("global_step40")
    choice = choose_checkpoint(tmp_path)
    assert choice.step == 10 and "global_step40" in choice.messages[0]


def test_latest_may_be_pointed_back_by_hand(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    (tmp_path / "latest").write_text("global_step10\n")
    assert choose_checkpoint(tmp_path).step == 10
    assert choose_checkpoint(tmp_path, step=20).step == 20
    with pytest.raises(CheckpointError, match="steps there: 10, 20"):
        choose_checkpoint(tmp_path, step=15)


def test_garbage_in_latest_is_named(tmp_path):
    save(tmp_path, 10)
    for content in ("garbage", ""):
        (tmp_path / "latest").write_text(content)
        choice = choose_checkpoint(tmp_path)
        assert choice.step == 10 and "names no checkpoint" in choice.messages[0]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    assert "not readable" in choose_checkpoint(tmp_path).messages[0]


def test_a_run_that_goes_back_never_loses_what_it_saves_to_what_it_left_behind(tmp_path):
    for step in (2, 4, 6):
        save(tmp_path, step)
    said = set_aside_later(tmp_path, 4)
    assert len(said) == 1 and "global_step6" in said[0] and "abandoned-global_step6-1" in said[0]
    save(tmp_path, 5)
    remove_old(tmp_path, keep=1)
    assert checkpoint.saved_steps(tmp_path) == [5] and choose_checkpoint(tmp_path).step == 5
    assert (tmp_path / "abandoned-global_step6-1/model.pt").exists()
    save(tmp_path, 6)
    set_aside_later(tmp_path, 5)
    assert (tmp_path / "abandoned-global_step6-2/model.pt").exists()


def test_keep_last_n(tmp_path):
    for step in (5, 10, 100):
        save(tmp_path, step)
    remove_old(tmp_path, keep=2)
    assert checkpoint.saved_steps(tmp_path) == [10, 100]
    remove_old(tmp_path, keep=None)
    assert checkpoint.saved_steps(tmp_path) == [10, 100]


def test_save_steps():
    linear = [s for s in range(1, 24) if is_save_step(s, 23, 10, "linear", [3])]
    assert linear == [3, 10, 20, 23]
    assert [s for s in range(1, 40) if is_save_step(s, 40, 2, "log", [])] == [1, 2, 4, 8, 16, 32]
    assert [s for s in range(1, 12) if is_save_step(s, 11, None, "linear", [])] == [11]
