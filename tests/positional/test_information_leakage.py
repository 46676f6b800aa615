"""The ablation without the triangle: what leaks, how far, where it is refused; and that nothing leaks without it."""

import pytest
import torch
from toy_attention import encoding_of

from megatron.attention.rows import ROWS
from megatron.config import ConfigError
from megatron.config.derive import complete
from megatron.model.gpt import GPT

LEAKING = {"pos_emb": "dape_kerple", "dape_kernel_size": 3, "dape_information_leakage": True}


def changed_rows(model: GPT, tokens: torch.Tensor, place: int) -> list[int]:
    """The positions whose logits change by any bit where the token at `place` does."""
    other = tokens.clone()
    other[:, place] = (other[:, place] + 1) % model.vocab_size
    with torch.no_grad():
        return (model(tokens) != model(other)).any(dim=-1).any(dim=0).nonzero().flatten().tolist()


@pytest.mark.parametrize(("kernel", "reach"), [(3, 2), (5, 4), (7, 6)])
@pytest.mark.parametrize("method", ["kerple", "none", "rotary"])
def test_a_later_token_reaches_as_far_back_as_the_two_layers_of_the_map_look_ahead(make_model, tokens, method, kernel, reach):
    """tokens [2, 12]; the one at 8 changes."""
    keys = {"pos_emb": f"dape_{method}", "dape_kernel_size": kernel, "num_layers": 1}
    assert changed_rows(make_model(**keys, dape_information_leakage=True), tokens, 8) == list(range(8 - reach, 12))
    assert changed_rows(make_model(**keys), tokens, 8) == [8, 9, 10, 11]


@torch.no_grad()
def test_the_leaking_map_is_the_map_of_the_whole_square():
    leaking, sound = (encoding_of("dape_alibi", 3, dape_information_leakage=leaks).score_map for leaks in (True, False))
    generator = torch.Generator().manual_seed(2)
    scores, bias = (torch.randn(2, 5, 9, 9, dtype=torch.float64, generator=generator) for _ in range(2))
    triangle = torch.ones(9, 9, dtype=torch.bool).tril()
    expected = sound.refine(scores, bias, torch.ones_like(triangle))
    torch.testing.assert_close(leaking.refine(scores, bias, triangle), expected, atol=0, rtol=0)
    assert not torch.equal(sound.refine(scores, bias, triangle), expected)


def test_evaluation_in_blocks_of_rows_leaks_what_training_does(make_model):
    model = make_model(**LEAKING)
    tokens = torch.randint(0, model.vocab_size, (1, 2 * ROWS + 5), generator=torch.Generator().manual_seed(1))
    whole = model(tokens).detach()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), whole, atol=1e-10, rtol=0)


def test_only_eager_leaks_and_auto_says_why_it_takes_it(make_config):
    assert "eager, for dape_information_leakage" in GPT(make_config(**LEAKING), 61).attention_reason
    assert "eager, as configured" in GPT(make_config(**LEAKING, attention_backend="eager"), 61).attention_reason
    with pytest.raises(ConfigError, match="blockwise cannot do dape_information_leakage.*Use `auto`, or one of eager"):
        GPT(make_config(**LEAKING, attention_backend="blockwise"), 61)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dape_kernel_size": 1}, "dape_kernel_size (--set) is 1: .* Use 3, 5 or 7"),
        ({"dape_form": "s+b+f(b)"}, "reads the bias alone"),
        ({"pos_emb": "kerple"}, "pos_emb: kerple has no DAPE map"),
    ],
)
def test_where_nothing_could_leak_it_is_refused(make_config, keys, words):
    with pytest.raises(ConfigError, match="--set: dape_information_leakage: .*" + words.replace("(", r"\(").replace(")", r"\)")):
        complete(make_config(**(LEAKING | keys)), None)


def test_it_is_off_by_default_and_warns_where_it_is_on(make_config):
    assert make_config(pos_emb="dape_kerple", dape_kernel_size=3).notices == ()
    (warning,) = make_config(**LEAKING).notices
    assert warning.startswith("WARNING: dape_information_leakage: true.") and "later tokens" in warning
