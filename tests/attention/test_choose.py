"""Backends are chosen or refused by name, when a model is built."""

import subprocess
import sys
from inspect import unwrap

import pytest

from megatron.attention.choose import check_backend, choose_backend
from megatron.attention.eager import eager_attention
from megatron.attention.sdpa import sdpa_attention
from megatron.config import ConfigError

REFUSED = [({"weight"}, False), ({"weight", "bias"}, False), ({"scores"}, False), ({"adjust"}, False), ({"bias"}, True), (set(), True)]


@pytest.mark.parametrize(("acts_on", "has_score_map"), REFUSED)
def test_sdpa_is_refused_by_name(acts_on: set, has_score_map: bool) -> None:
    with pytest.raises(ConfigError, match="attention_backend: sdpa cannot do pos_emb 'strange'.*eager"):
        check_backend("sdpa", "strange", acts_on, has_score_map)
    with pytest.raises(ConfigError):
        choose_backend("sdpa", "strange", acts_on, has_score_map)


@pytest.mark.parametrize(("acts_on", "has_score_map"), REFUSED)
def test_auto_falls_back_to_eager_and_says_why(acts_on: set, has_score_map: bool) -> None:
    attend, reason = choose_backend("auto", "strange", acts_on, has_score_map)
    assert attend.__wrapped__ is eager_attention  # in blocks of rows where no gradient is recorded
    assert "eager" in reason and "strange" in reason


@pytest.mark.parametrize("acts_on", [set(), {"bias"}, {"rotate"}, {"embed"}])
def test_auto_takes_sdpa_where_it_can(acts_on: set) -> None:
    for backend, function in (("auto", sdpa_attention), ("sdpa", sdpa_attention), ("eager", eager_attention)):
        attend, reason = choose_backend(backend, "plain", acts_on)
        assert unwrap(attend) is function and reason


def test_checking_imports_no_torch() -> None:
    program = "import sys; from megatron.attention.choose import check_backend; check_backend('sdpa', 'alibi', []); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "megatron.attention.choose" in modules and "torch" not in modules
