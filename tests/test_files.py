"""Small files are whole or not there."""

import pytest

from megatron.errors import UserError
from megatron.files import check_writable, write_atomically


def test_written_whole_replacing_what_was_there(tmp_path):
    path = tmp_path / "new/file"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two" and [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("kept")
    check_writable(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    for attempt in (lambda: check_writable(tmp_path / "file"), lambda: write_atomically(tmp_path / "new", "x")):
        with pytest.raises(UserError, match="cannot be written"):
            attempt()
    assert (tmp_path / "file").read_text() == "kept" and sorted(p.name for p in tmp_path.iterdir()) == ["file", "new"]
