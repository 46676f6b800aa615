"""Every command of the README is real: its files exist, its configuration loads, its options are known."""

import re
import shlex
from pathlib import Path

import pytest

from megatron.launch.entry import read_run

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
ENTRY_POINTS = ("train.py", "eval.py", "generate.py")


def with_entry_point() -> list[list[str]]:
    words = [shlex.split(command) for command in COMMANDS]
    return [command for command in words if any(word in ENTRY_POINTS for word in command)]


def test_the_readme_shows_the_commands_that_this_file_knows():
    assert len(with_entry_point()) >= 5
    assert {"make demo", "make test"} <= set(COMMANDS)


@pytest.mark.parametrize("command", with_entry_point(), ids=" ".join)
def test_commands_with_a_configuration_load_it(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = next(index for index, word in enumerate(command) if word in ENTRY_POINTS)
    assert (ROOT / command[script]).is_file()
    config = read_run(command[script + 1 :], world_size=1)
    assert config.model.num_layers == 12


def test_make_targets_and_linked_files_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {command.split()[1] for command in COMMANDS if command.startswith("make ")} <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
    for script in re.findall(r"python ([\w/]+\.py)", "\n".join(COMMANDS)):
        assert (ROOT / script).is_file(), script
