"""Backends are chosen or refused by name, when a model is built."""

import subprocess
import sys
from inspect import unwrap

import pytest
import torch

from megatron.attention.blockwise import blockwise_attention
from megatron.attention.choose import KERNELS, Needs, check_backend, choose_backend
from megatron.attention.eager import eager_attention
from megatron.attention.flash import flash_attention
from megatron.attention.sdpa import sdpa_attention
from megatron.config import ConfigError

PLAIN = [Needs("strange", frozenset(hooks)) for hooks in ({}, {"rotate"}, {"embed"})]
BIASED = [Needs("strange", frozenset({"bias"})), Needs("strange", frozenset({"bias"}), translation_invariant=False)]
WINDOWED = [Needs("strange", window=True)]
BEYOND = [Needs("strange", frozenset(hooks)) for hooks in ({"weight"}, {"weight", "bias"}, {"scores"}, {"adjust"})]
MAPPED = [Needs("strange", frozenset(hooks), has_score_map=True) for hooks in ({}, {"bias"}, {"rotate"}, {"scores"})]
ABLE = {
    "eager": PLAIN + BIASED + WINDOWED + BEYOND + MAPPED,
    "blockwise": PLAIN + BIASED + WINDOWED + BEYOND + MAPPED,
    "sdpa": PLAIN + BIASED + WINDOWED,
    "flex": PLAIN + BIASED[:1] + WINDOWED,
    "flash": PLAIN,
}


def short(needs: Needs) -> str:
    """The same in every process: a set's own order is not."""
    flags = {"map": needs.has_score_map, "moving": not needs.translation_invariant, "window": needs.window}
    return "+".join([*sorted(needs.acts_on), *(name for name, set_ in flags.items() if set_)]) or "plain"


@pytest.mark.parametrize("needs", ABLE["eager"], ids=short)
@pytest.mark.parametrize("name", KERNELS)
def test_a_backend_can_or_is_refused_by_name(name: str, needs: Needs) -> None:
    if needs in ABLE[name]:
        check_backend(name, needs)
    else:
        asked = "sliding_window_width" if needs.window else "pos_emb 'strange'"
        with pytest.raises(ConfigError, match=f"attention_backend: {name} cannot do {asked}.*eager.*blockwise"):
            check_backend(name, needs)
        with pytest.raises(ConfigError):
            choose_backend(name, needs)


def test_a_map_that_leaks_is_for_eager_alone() -> None:
    leaking = Needs("strange", has_score_map=True, leaks=True)
    assert [name for name, kernel in KERNELS.items() if kernel.obstacle(leaking) is None] == ["eager"]
    attend, reason = choose_backend("auto", leaking)
    assert unwrap(attend) is eager_attention and reason.startswith("eager, for dape_information_leakage")


@pytest.mark.parametrize("needs", ABLE["eager"], ids=short)
def test_auto_says_what_it_takes_and_why(needs: Needs) -> None:
    attend, reason = choose_backend("auto", needs)
    assert unwrap(attend) is (sdpa_attention if needs in PLAIN else blockwise_attention)
    assert reason.startswith("sdpa" if needs in PLAIN else "blockwise")
    assert ("sliding_window_width" if needs.window else "strange") in reason


def test_what_is_asked_for_is_taken() -> None:
    functions = {"eager": eager_attention, "sdpa": sdpa_attention, "flash": flash_attention, "blockwise": blockwise_attention}
    for name, function in functions.items():
        attend, reason = choose_backend(name, Needs("none"))
        assert unwrap(attend) is function and reason == f"{name}, as configured"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_flex_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="flex needs a GPU.*blockwise"):
        choose_backend("flex", Needs("alibi", frozenset({"bias"})))


def test_checking_imports_no_torch() -> None:
    program = (
        "import sys; from megatron.attention.choose import Needs, check_backend; check_backend('sdpa', Needs('x')); print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "megatron.attention.choose" in modules and "torch" not in modules
