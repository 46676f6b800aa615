"""generate.py's work on a checkpoint: what is said and kept when something is wrong."""

import json

import pytest
import torch

from megatron.config import ConfigError
from megatron.errors import UserError
from megatron.generation.run import sample_from_checkpoint
from megatron.model.gpt import GPT
from megatron.tokenizer import build_tokenizer
from megatron.training.checkpoint import Layout, file_record, publish, temporary_folder

KEYS = {"tokenizer_type": "CharLevelTokenizer", "maximum_tokens": 3, "num_samples": 1, "device": "cpu"}


@pytest.fixture
def trained(tmp_path, make_config):
    """Keys that name the checkpoint of a model with a learned table of 32 positions."""
    config = make_config(pos_emb="learned", **KEYS)
    written = temporary_folder(tmp_path / "run", 7)
    file = written / "mp_rank_00_model_states.pt"
    model = GPT(config, build_tokenizer(config.tokenizer).vocab_size)
    torch.save({"module": model.state_dict(), "configuration": config.model_dump(mode="json")}, file)
    publish(written, tmp_path / "run", 7, Layout(1, 0, "fp32"), {file.name: file_record(file)})
    return {**KEYS, "pos_emb": "learned", "load": str(tmp_path / "run")}


def test_what_was_sampled_before_an_error_is_kept(make_config, trained, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("short\n" + "long" * 20 + "\n")
    keys = {"text_gen_type": "input-file", "sample_input_file": str(prompts), "sample_output_file": str(out)}
    with pytest.raises(UserError, match="83 tokens.*32 rows"):
        sample_from_checkpoint(make_config(**trained | keys))
    assert [json.loads(line)["context"] for line in out.read_text().splitlines()] == ["short"]


def test_ids_that_end_segments_are_the_tokenizers(make_config, trained):
    with pytest.raises(ConfigError, match="--set: bipe_segment_tokens: 9999 is no id of the tokenizer"):
        sample_from_checkpoint(make_config(**trained | {"pos_emb": "bipe_alibi", "bipe_segment_tokens": [9999]}))


def test_other_keys_than_those_of_the_training_are_spoken_of(make_config, trained, capsys):
    assert sample_from_checkpoint(make_config(**trained | {"sliding_window_width": 8})) == 0
    assert "sliding_window_width: None in the checkpoint, 8 in this run" in capsys.readouterr().err


def test_a_folder_without_checkpoints_is_no_reason_to_start_from_scratch(make_config, trained):
    with pytest.raises(UserError, match="/nothere does not exist. Name the folder"):
        sample_from_checkpoint(make_config(**trained | {"load": "/nothere"}))
