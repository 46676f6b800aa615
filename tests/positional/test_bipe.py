"""BiPE: segments against loops over tokens, and whole models against ALiBi and RoPE at the segments' numbers."""

import pytest
import torch

from megatron.config import ConfigError
from megatron.config.derive import complete
from megatron.model.context import sequence_context
from megatron.model.gpt import GPT
from megatron.positional.bipe import segments
from megatron.tokenizer.characters import CharLevelTokenizer
from megatron.training.pretrain import check_tokenizer

END = 9


def by_loop(tokens: list[int], positions: list[int], ends: list[int], longest: int) -> tuple[list[int], list[int]]:
    """One sequence's places and segment numbers."""
    places, numbers, place, number = [], [], 0, 0
    for index in range(len(tokens)):
        if index and (tokens[index - 1] in ends or place == longest):
            place, number = 0, number + 1
        if positions[index] == 0:
            place = number = 0
        places.append(place)
        numbers.append(number)
        place += 1
    return places, numbers


def located(tokens, begins, longest=100):
    return [part.tolist() for part in segments(torch.tensor([tokens]) == END, torch.tensor(begins) == 0, longest)]


def test_by_hand():
    tokens = [1, 2, END, 3, END, END, 4, 5]
    assert located(tokens, range(8)) == [[[0, 1, 2, 0, 1, 0, 0, 1]], [[0, 0, 0, 1, 1, 2, 3, 3]]]
    assert located(tokens, [0, 1, 2, 3, 0, 1, 2, 3]) == [[[0, 1, 2, 0, 0, 0, 0, 1]], [[0, 0, 0, 1, 0, 1, 2, 2]]]  # a new document
    assert located(tokens, [0, 0, 0, 1, 2, 3, 4, 5]) == [[[0, 0, 0, 0, 1, 0, 0, 1]], [[0, 0, 0, 1, 1, 2, 3, 3]]]  # padding: 0 as well
    assert located([1] * 7 + [END], range(8), longest=3) == [[[0, 1, 2, 0, 1, 2, 0, 1]], [[0, 0, 0, 1, 1, 1, 2, 2]]]  # cut
    assert located([1, 1, END] * 2, range(6), longest=3) == [[[0, 1, 2] * 2], [[0] * 3 + [1] * 3]]  # just not cut


@pytest.mark.parametrize("longest", [1, 2, 5, 60])
def test_against_a_loop(make_model, longest):
    generator = torch.Generator().manual_seed(longest)
    ends = [2, 5]
    tokens = torch.randint(0, 12, (20, 50), generator=generator)
    positions = torch.randint(0, 15, (20, 50), generator=generator)
    encoding = make_model(pos_emb="bipe_alibi", bipe_segment_tokens=ends, bipe_segment_length=longest, num_layers=1).embedding.positional
    for given in (positions, positions[0]):
        places, numbers = encoding.locate(tokens, given)
        assert places.dtype == numbers.dtype == torch.int64
        for row, row_positions in enumerate(given.expand_as(tokens).tolist()):
            assert [places[row].tolist(), numbers[row].tolist()] == list(by_loop(tokens[row].tolist(), row_positions, ends, longest))
        for seen in (1, 17, 49):  # later tokens do not count
            for part, whole in zip(encoding.locate(tokens[:, :seen], given[..., :seen]), (places, numbers), strict=True):
                assert torch.equal(part, whole[:, :seen])


@pytest.mark.parametrize("prefix", ["", "dape_"])
@pytest.mark.parametrize("relative", ["alibi", "rotary"])
def test_is_a_table_of_places_and_a_relative_encoding_of_segments(make_model, tokens, prefix, relative):
    keys = {"bipe_segment_tokens": tokens[0, [3, 4, 9]].tolist(), "bipe_segment_length": 4}
    model, plain = make_model(pos_emb=f"{prefix}bipe_{relative}", **keys), make_model(pos_emb=prefix + relative)
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("positional.table")}
    plain.load_state_dict(state)
    rows = [by_loop(row, list(range(12)), keys["bipe_segment_tokens"], 4) for row in tokens.tolist()]
    places, numbers = (torch.tensor(part) for part in zip(*rows, strict=True))
    assert places.max() == 3 and numbers.max() > 3 and not torch.equal(numbers[0], numbers[1])
    x = plain.embedding.word_embeddings(tokens) + model.embedding.positional.table[places]
    wanted = plain.head(plain.run_blocks(x, sequence_context(12, 0, tokens.device, numbers), None), None)
    torch.testing.assert_close(model(tokens), wanted, atol=1e-10, rtol=0)


def test_one_table_serves_all_layers(make_config):
    for pos_emb in ("bipe_rotary", "dape_bipe_alibi"):
        model = GPT(make_config(pos_emb=pos_emb), 61)
        assert len({id(parameter) for name, parameter in model.named_parameters() if name.endswith("positional.table")}) == 1
        model.check_length(10**6)


def test_the_tokens_that_end_a_segment_are_required(make_config):
    config = make_config(pos_emb="dape_bipe_alibi", bipe_segment_tokens=None)
    with pytest.raises(ConfigError, match="bipe_segment_tokens: is missing.*dape_bipe_alibi.*configs/README.md"):
        complete(config, None)
    with pytest.raises(ConfigError, match="dape_bipe_alibi.*bipe_segment_tokens"):
        GPT(config, 61)


def test_a_scaled_rotation_must_say_how_many_segments_it_was_trained_for(make_config):
    keys = {"pos_emb": "bipe_rotary", "rotary_scaling.type": "yarn", "rotary_scaling.factor": 4.0}
    with pytest.raises(ConfigError, match="rotary_scaling.original_length: is missing.*bipe_rotary counts segments"):
        complete(make_config(**keys), None)
    config = complete(make_config(**keys, **{"rotary_scaling.original_length": 5}), None)
    assert config.positional.rotary_scaling.original_length == 5 and complete(config, None) == config


def test_the_tokens_that_end_a_segment_are_tokens(make_config):
    tokenizer = CharLevelTokenizer()
    check_tokenizer(make_config(pos_emb="bipe_alibi", bipe_segment_tokens=[0, tokenizer.vocab_size - 1]), tokenizer)
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ConfigError, match=f"bipe_segment_tokens: {wrong} .*CharLevelTokenizer.* 0 ... {tokenizer.vocab_size - 1}"):
            check_tokenizer(make_config(pos_emb="bipe_alibi", bipe_segment_tokens=[1, wrong]), tokenizer)
