"""Run by test_training_of_methods.py through deepy.py: train.py for several methods, one after another in the same processes.

Beside the configuration file lies methods.json: {name: ["key=value", ...]}. Each run's logs go to the folder `name` there.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from megatron.launch.entry import read_run, run_entry  # noqa: E402


def main(argv: list[str]) -> int:
    """The first exit code that is not 0. Checks all configurations before the first run."""
    folder = Path(argv[0]).parent
    methods = json.loads((folder / "methods.json").read_text())
    configs = [read_run(argv, overrides=[*keys, f"log_dir={folder / name}"]) for name, keys in methods.items()]
    from megatron.training.pretrain import pretrain

    return next((code for code in map(pretrain, configs) if code), 0)


if __name__ == "__main__":
    run_entry(main)
