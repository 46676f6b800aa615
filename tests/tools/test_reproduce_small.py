"""tools/reproduce_small.py: stopped, gone on with, failing in one method; and the orders from results that were made up."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.reproduction.orders import judge, read_perplexities
from tools.reproduction.plans import METHODS, make_plans

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
STEPS = 300
KEYS = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "seq_length": 16,
    "dape_hidden_size": 4,
    "tokenizer_type": "CharLevelTokenizer",
    "split": "80,20,0",
    "num_workers": 0,
    "train_iters": STEPS,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.003}},
    "zero_optimization": {"stage": 0},
    "eval_interval": 10**6,
    "eval_lengths": [16, 32, 128],
    "eval_sequences": 2,
    "log_interval": 1,
}


@pytest.fixture
def config(tmp_path):
    """A file of what tiny runs share, on a corpus of their own."""
    (tmp_path / "text.jsonl").write_text(
        "".join(json.dumps({"text": path.read_text()}) + "\n" for path in (ROOT / "tools").glob("*.py")) * 4
    )
    command = [sys.executable, ROOT / "tools/datasets/preprocess_data.py", "--input", tmp_path / "text.jsonl", "--append-eod"]
    command += ["--tokenizer-type", "CharLevelTokenizer", "--output-prefix", tmp_path / "text"]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    file = tmp_path / "tiny.yml"
    file.write_text(json.dumps(KEYS | {"data_path": str(tmp_path / "text_text_document")}))
    return file


def command(config: Path, output: Path, *methods: str) -> list[str]:
    arguments = ["--config", config, "--output", output, "--jobs", "2", "--methods", *methods]
    return [sys.executable, str(ROOT / "tools/reproduce_small.py"), *map(str, arguments)]


def call(*words) -> subprocess.CompletedProcess:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=SECONDS)


def trained(folder: Path) -> list[int]:
    """The steps of a run's lines, in the order in which they were written."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [line["step"] for line in map(json.loads, lines) if "lm_loss" in line]


def test_a_stopped_comparison_goes_on_and_one_failure_stops_no_other(config, tmp_path):
    output = tmp_path / "out"
    runs = [output / "runs" / name for name in ("alibi_1", "dape_v2_alibi_1")]
    process = subprocess.Popen(
        command(config, output, "alibi", "dape_v2_alibi"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + SECONDS
    while not any(map(trained, runs)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 75 and "the same command goes on" in said
    before = [len(trained(run)) for run in runs]
    assert max(before) > 0 and min(before) < STEPS and not (output / "report").exists()

    (output / "runs" / "none_1").mkdir()
    (output / "runs" / "none_1" / "checkpoints").write_text("in the way")
    ended = call(config, output, "none", "alibi", "dape_v2_alibi")
    assert ended.returncode == 1 and "error: none_1 failed with exit code 2" in ended.stderr
    assert "in the way" not in ended.stderr and "is not a folder" in (output / "runs/none_1/run.log").read_text()
    for run in runs:
        assert trained(run) == list(range(1, STEPS + 1))  # no step twice: gone on with from the last checkpoint
    verdicts = {verdict["order"]: verdict for verdict in json.loads((output / "report/orders.json").read_text())["orders"]}
    results = [json.loads((run / "results.json").read_text())["results"] for run in runs]
    perplexity = [{record["eval_length"]: record["perplexity"] for record in records} for records in results]
    alike = verdicts["all methods within a few per cent at the training length (16)"]
    assert alike["figures"] == pytest.approx({"ALiBi": perplexity[0][16], "DAPE V2-ALiBi, kernel 3": perplexity[1][16]})
    assert verdicts["RoPE much worse from 32 tokens on"]["holds"] is None
    assert "ALiBi flat" in ended.stdout and "runs missing" in ended.stdout
    assert len((output / "report/orders.md").read_text().splitlines()) == 2 + len(verdicts)
    assert (output / "report/table.md").is_file() and (output / "report/report.html").is_file()

    again = call(config, output, "alibi", "dape_v2_alibi")
    assert again.returncode == 0 and "started" not in again.stdout and [len(trained(run)) for run in runs] == [STEPS, STEPS]


def test_mistakes_are_found_before_anything_starts(config, tmp_path):
    output = tmp_path / "out"
    wrong = call(config, output, "alibi", "alibbi")
    assert wrong.returncode == 2 and "error: alibbi: " in wrong.stderr and "Nearest: alibi" in wrong.stderr
    os.remove(tmp_path / "text_text_document.bin")
    missing = call(config, output, "alibi")
    assert missing.returncode == 2 and "text_text_document.bin: no such file" in missing.stderr
    assert not output.exists()


def test_plans_are_the_papers_methods_with_a_seed_each(tmp_path):
    plans = make_plans(ROOT / "configs/reproduce_small.yml", METHODS, 2, tmp_path)
    assert len(plans) == 2 * 10 and len({plan.folder for plan in plans}) == 20
    methods = {(plan.config.positional.pos_emb, plan.config.positional.dape_kernel_size) for plan in plans}
    plain = {(name, 1) for name in ("none", "rotary", "alibi", "t5", "kerple_log", "fire", "dape_kerple", "dape_alibi", "dape_fire")}
    assert methods == plain | {("dape_kerple", 3)}
    for plan in plans:
        assert (plan.config.model.seq_length, max(plan.config.evaluation.eval_lengths)) == (128, 4096)
        assert plan.config.training.seed == plan.seed and plan.config.checkpoint.load == plan.config.checkpoint.save


# as in the papers: (name, kernel) -> perplexity at 128, 256, 1024, 4096
PAPERS = {
    ("none", 1): (20.6, 24, 90, 300),
    ("rotary", 1): (20.3, 31, 60, 82),
    ("alibi", 1): (20.1, 19.5, 19.4, 19.45),
    ("kerple_log", 1): (20.0, 19.3, 19.1, 19.3),
    ("fire", 1): (20.0, 19.4, 22, 40),
    ("dape_kerple_log", 1): (20.0, 19.2, 18.9, 18.8),
    ("dape_alibi", 1): (20.0, 19.4, 19.3, 19.4),
    ("dape_fire", 1): (20.0, 19.3, 21, 30),
    ("dape_kerple_log", 3): (19.9, 19.1, 18.7, 18.5),
}
LENGTHS = (128, 256, 1024, 4096)


def judged(changes=None, without=()) -> list[bool | None]:
    curves = {**PAPERS, **(changes or {})}
    found = {method: dict(zip(LENGTHS, values, strict=True)) for method, values in curves.items() if method not in without}
    return [verdict.holds for verdict in judge(found, 128)]


def test_the_papers_figures_show_every_order():
    assert judged() == [True] * 9


@pytest.mark.parametrize(
    ("method", "values", "broken"),
    [
        (("none", 1), (21.5, 24, 90, 300), [0]),  # 8 per cent above the best at the training length
        (("rotary", 1), (20.3, 24.0, 60, 82), [1]),  # 1.18 times at twice the length
        (("alibi", 1), (20.1, 19.5, 19.4, 19.9), [2]),  # 2.6 per cent between 1,024 and 4,096
        (("kerple_log", 1), (20.0, 19.3, 19.55, 19.3), [3]),  # 1.008 times ALiBi at 1,024
        (("dape_kerple_log", 1), (20.0, 19.2, 18.9, 19.5), [4]),
        (("dape_alibi", 1), (20.0, 19.4, 19.6, 19.4), [5]),
        (("dape_fire", 1), (20.0, 25, 21, 41), [6]),  # at 256 nothing is asked
        (("dape_kerple_log", 3), (19.9, 19.1, 19.9, 18.5), [7]),
        (("fire", 1), (20.0, 19.4, 22, 1.1), [6, 8]),  # a perplexity near 1: the future leaks
    ],
)
def test_a_figure_out_of_order_breaks_that_order_alone(method, values, broken):
    holds = judged({method: values})
    assert [index for index, each in enumerate(holds) if not each] == broken


def test_orders_of_missing_runs_are_left_open():
    assert judged(without=[("rotary", 1), ("fire", 1), ("dape_kerple_log", 3)]) == [True, None, True, True, True, True, None, None, True]


def test_perplexities_are_the_mean_of_the_seeds_at_the_last_tokens(tmp_path):
    for number, loss in enumerate((2.0, 3.0), start=1):
        folder = tmp_path / f"dape_kerple_{number}"
        folder.mkdir()
        (folder / "config.yml").write_text(json.dumps(KEYS | {"pos_emb": "dape_kerple", "dape_kernel_size": 3, "seed": number}))
        keys = {"step": 5, "split": "valid", "loss": loss, "perplexity": math.exp(loss), "stderr": 0.1}
        records = [{"protocol": "last", "eval_length": 16, **keys}, {"protocol": "non_overlapping", "eval_length": 32, **keys}]
        content = {"pos_emb": "dape_kerple", "training_length": 16, "step": 5, "results": records}
        (folder / "results.json").write_text(json.dumps(content))
    found = read_perplexities(sorted(tmp_path.iterdir()))
    assert found == {("dape_kerple_log", 3): {16: pytest.approx((math.exp(2) + math.exp(3)) / 2)}}
