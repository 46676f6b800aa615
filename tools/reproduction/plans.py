"""The runs to make: a method and a seed each, with its command, its folder, and whether it is finished."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from megatron.config import Config, ConfigError
from megatron.config.dump import dump_yaml
from megatron.errors import UserError
from megatron.launch.entry import read_run
from megatron.monitor.json_lines import read_json_lines

ROOT = Path(__file__).resolve().parents[2]
V2 = "dape_v2_"
METHODS = (  # of the papers' comparison; the slowest first, so that the last ones to end are short
    "dape_v2_kerple", "dape_fire", "dape_kerple", "dape_alibi", "fire", "t5", "kerple_log", "alibi", "rotary", "none",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """One run. `arguments` are those of train.py."""

    method: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """What the run says."""
        return self.folder / "run.log"

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [sys.executable, str(ROOT / "deepy.py"), str(ROOT / "train.py"), *self.arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Of the command: one thread, and nothing of a launcher above this one."""
        return {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} | {
            "OMP_NUM_THREADS": "1"
        }

    @cached_property
    def config(self) -> Config:
        """Its configuration. Raises ConfigError where it is none."""
        return read_run(self.arguments, world_size=1)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.config.training.train_iters

    def finished(self) -> bool:
        """Whether this very configuration was trained and evaluated to the end, with finite losses (others are texts in JSON)."""
        try:
            results = json.loads((self.folder / "results.json").read_text())
            same = (self.folder / "config.yml").read_text() == dump_yaml(self.config)
        except FileNotFoundError:
            return False
        return same and results["step"] == self.steps and all(isinstance(record["loss"], float) for record in results["results"])

    def progress(self) -> tuple[int, float | None]:
        """(the last step that was logged, its loss), (0, None) before there is one."""
        path = self.folder / "metrics.jsonl"
        lines = read_json_lines(path)[0] if path.is_file() else []
        return next(((line["step"], line["lm_loss"]) for line in reversed(lines) if "lm_loss" in line), (0, None))


def make_plans(file: Path, methods: Sequence[str], seeds: int, output: Path) -> list[Plan]:
    """Every method with the first seed, then with the next. Raises UserError for what is no configuration, before anything starts."""
    plans = []
    for number in range(1, seeds + 1):
        for method in dict.fromkeys(methods):
            folder = output / "runs" / f"{method}_{number}"
            kernel = ["dape_kernel_size=3"] if method.startswith(V2) else []
            pos_emb = "dape_" + method.removeprefix(V2) if kernel else method
            keys = [f"pos_emb={pos_emb}", *kernel, f"seed={number}", f"save={folder / 'checkpoints'}", f"load={folder / 'checkpoints'}"]
            keys += [f"log_dir={folder}", "num_gpus=1", "device=cpu", "cpu_threads=1"]
            plans.append(Plan(method, number, folder, (str(file), "--set", *keys)))
    for plan in plans:
        try:
            _ = plan.config
        except ConfigError as error:
            raise UserError(f"{plan.method}: {error}") from None
    return plans


def check_corpus(config: Config) -> None:
    """Raises UserError where the token file that all runs share is missing."""
    data = config.data.data_path
    if isinstance(data, str) and not Path(f"{data}.bin").is_file():
        raise UserError(
            f"{data}.bin: no such file. `make reproduce-small` writes it first, or prepare_data.py as in docs/reproduce_small.md."
        )
