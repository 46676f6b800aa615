"""What a resumed run must share with its checkpoint, and what is said where weights are used with other keys."""

import pytest
import torch

from megatron.config import ConfigError
from megatron.training.agreement import check_same_run, other_model
from megatron.training.checkpoint import Layout, file_record, publish, temporary_folder


@pytest.fixture
def saved(tmp_path):
    """A function that writes a checkpoint which holds a configuration and no weights, and returns its folder."""

    def write(config):
        written = temporary_folder(tmp_path, 7)
        file = written / "mp_rank_00_model_states.pt"
        torch.save({"module": {}, "configuration": config.model_dump(mode="json")}, file)
        publish(written, tmp_path, 7, Layout(1, 0, "fp32"), {file.name: file_record(file)})
        return tmp_path / "global_step7"

    return write


OTHERS = [
    ({"pos_emb": "dape_alibi"}, {"pos_emb": "dape_alibi", "trainable": "dape"}, "trainable: all in the checkpoint, dape in this run"),
    ({"pos_emb": "none"}, {"pos_emb": "rotary"}, "pos_emb: none in the checkpoint, rotary in this run"),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "sliding_window_width": 16}, "sliding_window_width: None in the checkpoint, 16"),
    ({"pos_emb": "rotary"}, {"pos_emb": "rotary", "rotary_scaling.type": "linear", "rotary_scaling.factor": 2.0}, "rotary_scaling: "),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "position_sampling": "randomized", "position_max": 4096}, "position_sampling: sequential"),
    ({"pos_emb": "dape_alibi"}, {"pos_emb": "dape_alibi", "dape_kernel_size": 3}, "dape_kernel_size: 1 in the checkpoint, 3"),
    (
        {"pos_emb": "dape_alibi", "dape_kernel_size": 3},
        {"pos_emb": "dape_alibi", "dape_kernel_size": 3, "dape_information_leakage": True},
        "dape_information_leakage: False in the checkpoint, True",
    ),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "norm": "rmsnorm"}, "norm: layernorm in the checkpoint, rmsnorm"),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "seq_length": 24}, "seq_length: 16 in the checkpoint, 24"),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "seed": 5}, "seed: 1234 in the checkpoint, 5"),
]
SAME = [
    ({"pos_emb": "nope"}, {"pos_emb": "none"}),
    ({"pos_emb": "rotary"}, {"pos_emb": "rotary", "xpos_scale_base": 256.0, "dape_hidden_size": 4}),
    ({"pos_emb": "alibi"}, {"pos_emb": "alibi", "attention_backend": "eager", "hidden_dropout": 0.1, "train_iters": 99}),
]


@pytest.mark.parametrize(("before", "now", "line"), OTHERS, ids=[line.split(":")[0] for _, _, line in OTHERS])
def test_a_resumed_run_is_the_same_run_or_is_refused_with_what_differs(make_config, saved, before, now, line):
    folder = saved(make_config(**before))
    check_same_run(make_config(**before), folder)
    with pytest.raises(ConfigError, match="this one would not continue") as error:
        check_same_run(make_config(**now), folder)
    assert line in str(error.value) and str(folder) in str(error.value)


@pytest.mark.parametrize(("before", "now"), SAME)
def test_keys_that_change_nothing_do_not_hinder(make_config, saved, before, now):
    folder = saved(make_config(**before))
    check_same_run(make_config(**now), folder)
    assert other_model(make_config(**now), folder) == ()


def test_weights_used_with_other_keys_of_the_model_are_spoken_of(make_config, saved):
    folder = saved(make_config(pos_emb="rotary"))
    (said,) = other_model(make_config(pos_emb="none", sliding_window_width=8), folder)
    assert "pos_emb: rotary in the checkpoint, none in this run" in said and "sliding_window_width" in said
    assert other_model(make_config(pos_emb="rotary", seq_length=24), folder) == ()
