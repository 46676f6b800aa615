"""Every method trains on two processes under ZeRO 1 and is evaluated at eight times its training length, or says why it cannot."""

import json
import math
from statistics import mean

import pytest
from variants import METHODS

LENGTH, FARTHEST = 32, 256
STEPS, ENDS = 30, 5  # the mean loss of the last 5 steps against that of the first 5
GAIN = 1.0  # nats a token: half of what these steps gain
TABLE = "learned"  # the one method that has no positions beyond its table
SAMPLE = [("alibi", None), ("kerple_power_both", None), ("transformer_xl", None), ("bipe_rotary", None), ("dape_kerple_log", 3)]


def keys_of(pos_emb: str, kernel: int | None) -> list[str]:
    """One method's `key=value`."""
    lengths = [LENGTH] if pos_emb.endswith(TABLE) else [LENGTH, FARTHEST]
    return [f"pos_emb={pos_emb}", f"eval_lengths={lengths}", *([f"dape_kernel_size={kernel}"] if kernel else [])]


@pytest.fixture
def train(make_run):
    """(pos_emb, kernel size or None) pairs -> each one's lines of metrics, from one launch of two processes that train them in turn."""

    def train(methods: list[tuple[str, int | None]]) -> dict[str, list[dict]]:
        run = make_run(
            num_layers=1,
            train_iters=STEPS,
            train_micro_batch_size_per_gpu=4,
            optimizer={"type": "Adam", "params": {"lr": 0.01}},
            bipe_segment_tokens=[10, 46],  # a line's end and a full stop
            save=None,
            load=None,
            do_test=False,
        )
        names = {f"{pos_emb}-{kernel}" if kernel else pos_emb: keys_of(pos_emb, kernel) for pos_emb, kernel in methods}
        (run.folder / "methods.json").write_text(json.dumps(names))
        done = run.start(script="tests/end_to_end/train_each.py")
        assert done.returncode == 0, done.stdout
        for name in names:
            results = json.loads((run.folder / name / "results.json").read_text())["results"]
            assert results and all(math.isfinite(line["perplexity"]) for line in results), name
        return {name: [json.loads(line) for line in (run.folder / name / "metrics.jsonl").read_text().splitlines()] for name in names}

    return train


def check(metrics: dict[str, list[dict]]) -> None:
    """Every method's loss fell, and its perplexity is finite at every length that it can be asked for."""
    for name, lines in metrics.items():
        losses = [line["lm_loss"] for line in lines if "lm_loss" in line]
        assert len(losses) == STEPS
        assert mean(losses[-ENDS:]) < mean(losses[:ENDS]) - GAIN, f"{name}: {losses}"
        perplexities = {line["eval_length"]: line["perplexity"] for line in lines if "perplexity" in line}
        assert set(perplexities) == ({LENGTH} if TABLE in name else {LENGTH, FARTHEST}), name
        assert all(math.isfinite(value) for value in perplexities.values()), f"{name}: {perplexities}"


def test_each_mechanism_trains_and_reaches_eight_times_its_length(train):
    check(train(SAMPLE))


def test_a_learned_table_says_why_it_ends(make_run):
    for pos_emb in (TABLE, f"dape_{TABLE}"):
        done = make_run(pos_emb, pos_emb=pos_emb, eval_lengths=[LENGTH, FARTHEST]).start()
        assert done.returncode == 2 and "Traceback" not in done.stdout
        assert "eval_lengths" in done.stdout and "256" in done.stdout and "max_position_embeddings" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, 1, 3])
def test_every_method_trains_and_reaches_eight_times_its_length(train, kernel):
    """Alone, and under a map of kernel 1 and 3."""
    metrics = train([(name if kernel is None else f"dape_{name}", kernel) for name in METHODS])
    assert len(metrics) == len(METHODS)
    check(metrics)
