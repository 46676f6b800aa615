"""The requirement files: exact versions, no index of anyone's choice, torch first."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def lines(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_all_are_there():
    endings = {"", "-apex", "-dev", "-flashattention", "-tensorboard", "-wandb"}
    assert {path.stem for path in FILES} == {f"requirements{ending}" for ending in endings}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_line_names_one_exact_version_and_no_index(path):
    assert lines(path)
    for line in lines(path):
        requirement = Requirement(line)
        if requirement.url:
            assert re.search(r"\.git@[\w.]+$", requirement.url)
        else:
            assert [each.operator for each in requirement.specifier] == ["=="]


def test_torch_is_the_first_and_the_only_line_of_its_name():
    """`make` and the Dockerfile pick it by `grep '^torch=='`."""
    core = lines(ROOT / "requirements" / "requirements.txt")
    assert [line for line in core if line.startswith("torch==")] == core[:1]
    for user in ("Makefile", "Dockerfile"):
        assert "grep '^torch==' requirements/requirements.txt" in (ROOT / user).read_text()


def test_whatever_the_image_copies_exists():
    text = (ROOT / "Dockerfile").read_text()
    for name in re.findall(r"requirements/[\w.-]+\.txt", text):
        assert (ROOT / name).is_file(), name
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
