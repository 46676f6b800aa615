"""Names, aliases, the one-line registration of a method, sharing over layers, and the documentation made from the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_attention import encoding_of, hidden_states, scores_of

from megatron.config.aliases import POSITIONAL
from megatron.config.base import ConfigError
from megatron.config.methods import METHODS, Method, names, resolve
from megatron.config.positional import PositionalConfig
from megatron.errors import UserError
from megatron.positional import documentation
from megatron.positional.build import build_layers, build_positional

SIZES = {"heads": 4, "head_dim": 4, "hidden_size": 16, "seq_length": 8, "max_position_embeddings": 8}


def config_of(pos_emb: str, **keys) -> PositionalConfig:
    """With the keys that a method cannot do without."""
    return PositionalConfig(pos_emb=pos_emb, bipe_segment_tokens=[1], **keys)


@pytest.mark.parametrize(
    ("name", "canonical", "kernel"),
    [
        ("none", "none", None),
        ("nope", "none", None),
        ("rope", "rotary", None),
        ("rpe", "t5", None),
        ("xl_bias", "transformer_xl", None),
        ("kerple", "kerple_log", None),
        ("kerple_power_ap_", "kerple_power", None),
        ("kerple_power__ap", "kerple_power_weight", None),
        ("kerple_power_ap_ap", "kerple_power_both", None),
        ("dape_kerple", "dape_kerple_log", 1),
        ("dape_rope", "dape_rotary", 1),
        ("dape_cope", "dape_cope", 1),
    ],
)
def test_names(name, canonical, kernel):
    assert resolve(name).name == canonical
    score_map = build_positional(PositionalConfig(pos_emb=name), **SIZES).score_map
    assert (score_map.kernel_size if score_map is not None else None) == kernel


@pytest.mark.parametrize("name", ["capev2", "dape_", "dape_kerpel", "", "KERPLE", "dape_kerple_c", "dape_dape_alibi"])
def test_an_unknown_name_lists_candidates_and_all_names(name):
    with pytest.raises(ConfigError) as error:
        resolve(name)
    assert all(known in str(error.value) for known in names())
    assert f"pos_emb: {name} names" in str(error.value)


def test_the_nearest_candidates_come_first():
    for wrong, near in (("capev2", "kerple_capev2"), ("kerpel", "kerple"), ("dape_kerpel", "dape_kerple"), ("rotery", "rotary")):
        with pytest.raises(ConfigError, match=f"Nearest: [^.]*\\b{near}\\b"):
            resolve(wrong)


def test_every_name_is_one_method():
    every = [*names(), *POSITIONAL]
    assert len(set(every)) == len(every)


TOY = """
import torch
from megatron.positional.base import DistanceEncoding


class Toy(DistanceEncoding):
    def distance_bias(self, distances):
        return -distances.to(self.precision).sqrt().expand(self.heads, -1)
"""


def test_a_method_is_one_file_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "toy_package").mkdir()
    (tmp_path / "toy_package" / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "toy", Method("toy_package.toy:Toy", "a test's own"))  # the line

    x, positions = hidden_states(5, 9), torch.arange(9)
    change = scores_of(encoding_of("toy"), x, positions) - scores_of(encoding_of("none"), x, positions)
    assert (change[..., 8, :] + torch.arange(8, -1, -1).double().sqrt()).abs().max() < 1e-12
    for kernel in (1, 3):  # and at once under a map, with all that a map promises
        encoding = encoding_of("dape_toy", kernel)
        full = scores_of(encoding, x, positions)
        assert (scores_of(encoding, x, positions, slice(8, None)) - full[:, :, 8:]).abs().max() < 1e-11
    assert "effective_length_head0" in encoding_of("toy").statistics()
    assert "a test's own" in documentation.table()


@pytest.mark.parametrize("name", METHODS)
def test_layers_share_what_is_to_be_shared(name):
    shared = {"none", "learned", "sinusoidal", "rotary", "xpos", "alibi", "t5", "bipe_rotary", "bipe_alibi"}
    layers = build_layers(config_of(name), 3, **SIZES)
    assert (layers[0] is layers[2]) == (name in shared) == layers[0].shared
    layers = build_layers(config_of(f"dape_{name}"), 3, **SIZES)
    for parameter, tensor in layers[0].named_parameters():
        same = tensor is layers[2].get_parameter(parameter)
        assert same == (name in shared and not parameter.startswith("score_map.")), parameter


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("kerple")])
def test_kerple_is_shared_by_key(name):
    layers = build_layers(PositionalConfig(pos_emb=name, kerple_shared=True), 3, **SIZES)
    assert layers[0] is layers[2]
    first, _, last = build_layers(PositionalConfig(pos_emb=f"dape_{name}", kerple_shared=True), 3, **SIZES)
    own = [each for each, _ in first.named_parameters() if not each.startswith("score_map.")]
    assert own and all(first.get_parameter(each) is last.get_parameter(each) for each in own)
    assert first.score_map is not last.score_map


def test_no_parameter_is_a_scalar():
    for name in METHODS:
        assert all(parameter.dim() >= 1 for parameter in build_positional(config_of(f"dape_{name}"), **SIZES).parameters())


def test_impossible_combinations_are_refused_when_built():
    for keys, sizes, words in (
        ({"pos_emb": "dape_kerple", "dape_kernel_size": 4}, {}, "dape_kernel_size: 4"),
        ({"pos_emb": "dape_rope", "dape_form": "s+b+f(b)"}, {}, "dape_form"),
        ({"pos_emb": "rotary", "rotary_pct": 0.3}, {}, "rotary_pct"),
        ({"pos_emb": "rotary"}, {"head_dim": 5}, "rotary_pct"),
        ({"pos_emb": "sinusoidal"}, {"hidden_size": 15}, "hidden_size"),
        ({"pos_emb": "t5", "rpe_max_distance": 16}, {}, "rpe_max_distance"),
    ):
        with pytest.raises(ConfigError, match=words):
            build_positional(PositionalConfig(**keys), **SIZES | sizes)


def test_learned_refuses_lengths_above_its_table():
    encoding = build_positional(PositionalConfig(pos_emb="learned"), **SIZES)
    encoding.check_length(8)
    assert encoding.embed(torch.arange(8)).shape == (8, 16)
    with pytest.raises(UserError, match="9 tokens.*8 rows"):
        encoding.embed(torch.arange(9))
    for name in METHODS.keys() - {"learned", "xpos"}:
        build_positional(config_of(name), **SIZES).check_length(10**6, torch.float32)


def run(*arguments: str) -> subprocess.CompletedProcess:
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True)


def test_names_are_resolved_and_listed_without_torch():
    imports = "import sys, megatron.config.methods as methods, megatron.positional.documentation as documentation"
    code = f"{imports}; methods.resolve('dape_kerple'); documentation.page(); print('torch' in sys.modules)"
    assert run("-c", code).stdout.strip() == "False"


def test_the_command_lists_every_method_key_and_alias():
    result = run("-m", "megatron.positional")
    assert result.returncode == 0
    for name, method in METHODS.items():
        line = re.search(rf"^{name} .*$", result.stdout, re.MULTILINE).group()
        assert all(part in line for part in (*method.aliases, *method.options, method.description))
    assert all(re.search(rf"^{name} ", result.stdout, re.MULTILINE) for name in POSITIONAL)
    assert run("-m", "megatron.positional", "--nonsense").returncode == 2


def test_the_page_is_current():
    page = Path(documentation.__file__).with_name("README.md").read_text()
    assert page == documentation.page(), "run: python -m megatron.positional --markdown > megatron/positional/README.md"
