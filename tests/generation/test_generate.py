"""Texts from prompts."""

import pytest
import torch

from megatron.errors import UserError
from megatron.generation.generate import generate, generate_unconditional
from megatron.positional.sampling import PositionSampling

EOD = 60


class Letters:
    """ids 0..59 are the characters from '0' on; 60 ends a document."""

    name, vocab_size, eod = "Letters", 61, EOD

    def encode(self, text):
        return [ord(letter) - 48 for letter in text]

    def decode(self, ids):
        return "".join(chr(48 + token) for token in ids)


def texts(model, prompts, **settings):
    return [result["text"] for result in generate(model, Letters(), prompts, **({"maximum_tokens": 9} | settings))]


@torch.no_grad()
def greedy(model, prompt: str, n: int) -> str:
    """Without a cache, one full pass per token."""
    ids = Letters().encode(prompt) or [EOD]
    start = len(ids)
    for _ in range(n):
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token == EOD:
            break
        ids.append(token)
    return Letters().decode(ids[start:])


@pytest.mark.parametrize("pos_emb", ["none", "learned", "rotary", "alibi", "kerple", "dape_kerple"])
def test_greedy_is_repeated_argmax(make_model, pos_emb) -> None:
    model = make_model(pos_emb=pos_emb)
    prompts = ["HELLO", "A", "", "ABCDEFGHI"]
    assert texts(model, prompts) == [greedy(model, prompt, 9) for prompt in prompts]


@torch.no_grad()
@pytest.mark.parametrize("pos_emb", ["learned", "rotary", "dape_kerple"])
def test_positions_are_drawn_once_for_prompt_and_continuation(make_model, pos_emb) -> None:
    model = make_model(pos_emb=pos_emb, position_sampling="randomized", position_max=200, max_position_embeddings=200)
    prompts, wanted = ["HELLO", "A", "ABCDEFGHI"], []
    for number, prompt in enumerate(prompts):
        ids, drawn = Letters().encode(prompt), PositionSampling(200, seed=5).draw(len(prompt) + 9, f"prompt {number}")
        while len(ids) < len(drawn) and EOD not in ids:
            ids.append(int(model(torch.tensor([ids]), position_ids=drawn[: len(ids)])[0, -1].argmax()))
        wanted.append(Letters().decode([token for token in ids[len(prompt) :] if token != EOD]))
    assert texts(model, prompts, seed=5) == wanted == texts(model, prompts, seed=5, batch_size=2)
    assert texts(model, prompts, seed=6) != wanted
    with pytest.raises(UserError, match="201 tokens.*200"):
        texts(model, ["A"], maximum_tokens=200)


def test_a_length_that_xpos_cannot_represent_is_refused_before_sampling(make_model) -> None:
    model = make_model(pos_emb="xpos", xpos_scale_base=1.0).float()
    assert texts(model, ["A"], maximum_tokens=20)
    with pytest.raises(UserError, match="spans 1001 tokens.*xpos_scale_base 1 "):
        texts(model, ["A"], maximum_tokens=1000)


def test_samples_do_not_depend_on_the_batch(make_model) -> None:
    model = make_model(pos_emb="alibi")
    prompts = ["HELLO", "A", "", "ABC"]
    settings = {"temperature": 1.0, "seed": 4}
    together = texts(model, prompts, **settings)
    assert together == texts(model, prompts, batch_size=1, **settings) == texts(model, prompts, batch_size=3, **settings)
    assert together != texts(model, prompts, temperature=1.0, seed=5)


def test_stops_at_the_end_of_a_document(make_model) -> None:
    model = make_model(pos_emb="none", no_weight_tying=True)
    with torch.no_grad():  # the end of a document is always likeliest, after one letter that has its own vector
        model.head.norm.weight.zero_()
        model.head.norm.bias.fill_(1.0)
        model.head.weight.zero_()
        model.head.weight[EOD] = 1.0
    [result] = generate(model, Letters(), ["AB"], maximum_tokens=5)
    assert result == {"context": "AB", "text": "", "length": 0, "finished": True}
    with torch.no_grad():
        model.head.weight[7] = 2.0
    [result] = generate(model, Letters(), ["AB"], maximum_tokens=5)
    assert result == {"context": "AB", "text": "77777", "length": 5, "finished": False}


def test_padded_ids_are_never_sampled(make_model) -> None:
    model = make_model(pos_emb="none", no_weight_tying=True)
    with torch.no_grad():
        model.head.norm.weight.zero_()
        model.head.norm.bias.fill_(1.0)
        model.head.weight.zero_()
        model.head.weight[61:] = 9.0  # the three rows of padding would win every draw
    for settings in ({"temperature": 0.0}, {"temperature": 1.0}):
        for result in generate(model, Letters(), ["AB"] * 8, maximum_tokens=8, **settings):
            assert all(48 <= ord(letter) < 48 + 61 for letter in result["text"])


def test_unconditional(make_model) -> None:
    model = make_model(pos_emb="rotary")
    results = list(generate_unconditional(model, Letters(), 3, maximum_tokens=6, temperature=1.0))
    assert [result["context"] for result in results] == [""] * 3
    assert len({result["text"] for result in results}) == 3


def test_the_models_mode_is_put_back(make_model) -> None:
    model = make_model(pos_emb="none", hidden_dropout=0.5).train()
    assert texts(model, ["ABC"]) == texts(model, ["ABC"])
    assert model.training


def test_what_cannot_be_generated(make_model) -> None:
    with pytest.raises(UserError, match="33 tokens.*learned.*32"):
        texts(make_model(pos_emb="learned"), ["A"], maximum_tokens=32)

    class Endless(Letters):
        eod = None

    with pytest.raises(UserError, match="empty prompt"):
        list(generate(make_model(pos_emb="none"), Endless(), [""], maximum_tokens=2))
