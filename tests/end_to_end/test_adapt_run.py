"""A DAPE map learned on top of a model trained without one, by real runs: nothing else moves, a stop changes nothing."""

import pytest
import torch

from megatron.training.weights import in_every_layer, read_weights
from tests.end_to_end.conftest import Run

BASE = {"kerple_shared": True, "train_iters": 4, "eval_lengths": [32], "gradient_clipping": 0.01}


def adapt(make_run, stage: int, precision: str = "fp32") -> Run:
    """Adapt in two halves under ZeRO `stage`, and compare every tensor with the base model's; the adapting run."""
    shared = {**BASE, "precision": precision}
    base = make_run("base", **shared)
    done = base.start()
    assert done.returncode == 0, done.stdout
    keys = {"pos_emb": "dape_kerple_log", "adapt": True, "trainable": "dape", "load": str(base.folder / "checkpoints")}
    adapted = make_run("adapted", **{**shared, **keys, "zero_optimization": {"stage": stage}, "exit_interval": 2})
    done = adapted.start()
    assert done.returncode == 75, done.stdout
    assert "parameters are trained, the others are frozen" in done.stdout
    half = read_weights(adapted.folder / "checkpoints/global_step2")
    done = adapted.start()
    assert done.returncode == 0 and "next step 3" in done.stdout, done.stdout
    before = in_every_layer(read_weights(base.folder / "checkpoints/global_step4"), 2)
    after = read_weights(adapted.folder / "checkpoints/global_step4")
    maps = {name for name in after if ".score_map." in name}
    assert len(maps) == 8 and before.keys() == after.keys() - maps
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name
    for name in maps:
        if "output_bias" not in name:  # it shifts a row's scores alike, which the softmax does not see
            assert not torch.equal(after[name], half[name]), name
            assert half[name].abs().max() > 0, name
    return adapted


def test_only_the_map_changes_and_a_stopped_run_goes_on(make_run):
    adapt(make_run, stage=1)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (2, "bfloat16"), (3, "fp32")])
def test_only_the_map_changes_under_any_sharding_and_any_layout_evaluates_it(make_run, stage, precision):
    adapted = adapt(make_run, stage, precision)
    here = [line for line in adapted.metrics() if line.get("protocol")]
    done = adapted.start("num_gpus=1", "train_micro_batch_size_per_gpu=4", "zero_optimization.stage=1", script="eval.py")
    assert done.returncode == 0 and f"loaded {adapted.folder}/checkpoints/global_step4" in done.stdout, done.stdout
    alone = [line for line in adapted.metrics() if line.get("protocol")][len(here) :]
    assert [line["split"] for line in alone] == [line["split"] for line in here] == ["valid", "test"]
    assert [line["loss"] for line in alone] == pytest.approx([line["loss"] for line in here], abs=1e-5 if precision == "fp32" else 0.01)
