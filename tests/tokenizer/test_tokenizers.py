"""Tokenizers of every type, from files made here."""

import json

import pytest

from megatron.config.tokenizer import TokenizerConfig
from megatron.tokenizer import TokenizerError, build_tokenizer, padded_vocab_size
from megatron.tokenizer.training import train_bpe

TEXT = "def f(x):\n\treturn x + 1\r\n\n  # naïve café 漢字 🙂\n"
TRAINING = ["def f(x):\n    return x\n" * 20, "the cat and the dog and the cat\n" * 20]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A folder with tokenizer.json, and the same BPE as vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("vocabulary")
    train_bpe(TRAINING, 280, str(folder / "tokenizer.json"))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return folder


def config_of(kind, folder):
    files = {
        "HFTokenizer": {"vocab_file": str(folder / "tokenizer.json")},
        "GPT2BPETokenizer": {"vocab_file": str(folder / "vocab.json"), "merge_file": str(folder / "merges.txt")},
        "HFGPT2Tokenizer": {"vocab_file": str(folder / "tokenizer.json")},
        "CharLevelTokenizer": {},
    }[kind]
    return TokenizerConfig(tokenizer_type=kind, **files)


@pytest.mark.parametrize("kind", ["HFTokenizer", "GPT2BPETokenizer", "HFGPT2Tokenizer", "CharLevelTokenizer"])
def test_any_text_round_trips_exactly(vocabulary, kind):
    tokenizer = build_tokenizer(config_of(kind, vocabulary))
    ids = tokenizer.encode(TEXT)
    assert tokenizer.name == kind
    assert tokenizer.decode(ids) == TEXT
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.encode("") == []


def test_three_readers_of_one_vocabulary_agree(vocabulary):
    tokenizers = [build_tokenizer(config_of(kind, vocabulary)) for kind in ("HFTokenizer", "GPT2BPETokenizer", "HFGPT2Tokenizer")]
    first, *others = tokenizers
    assert first.vocab_size == 280 and first.decode([first.eod]) == "<|endoftext|>"
    for other in others:
        assert (other.encode(TEXT), other.vocab_size, other.eod) == (first.encode(TEXT), first.vocab_size, first.eod)


def test_training_merges_what_is_frequent(vocabulary):
    tokenizer = build_tokenizer(config_of("HFTokenizer", vocabulary))
    assert len(tokenizer.encode("the cat and the dog")) < 8


def test_a_text_that_spells_the_end_of_document_does_not_end_one_in_gpt2_bpe(vocabulary):
    tokenizer = build_tokenizer(config_of("GPT2BPETokenizer", vocabulary))
    assert tokenizer.eod not in tokenizer.encode("a<|endoftext|>b")


def test_hfgpt2_from_folders_with_its_own_end_of_sequence(vocabulary, tmp_path):
    transformers = pytest.importorskip("transformers")
    saved = transformers.PreTrainedTokenizerFast(tokenizer_file=str(vocabulary / "tokenizer.json"), eos_token="</s>")
    saved.save_pretrained(tmp_path / "saved")
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="HFGPT2Tokenizer", vocab_file=str(tmp_path / "saved")))
    assert tokenizer.decode([tokenizer.eod]) == "</s>" and tokenizer.eod == 280 and tokenizer.vocab_size == 281
    (tmp_path / "bare").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "bare" / name).write_text((vocabulary / name).read_text())
    bare = build_tokenizer(TokenizerConfig(tokenizer_type="HFGPT2Tokenizer", vocab_file=str(tmp_path / "bare")))
    assert bare.decode(bare.encode(TEXT)) == TEXT and bare.decode([bare.eod]) == "<|endoftext|>"


def test_a_vocabulary_without_end_of_document_has_none(vocabulary, tmp_path):
    whole = json.loads((vocabulary / "tokenizer.json").read_text())
    whole["added_tokens"] = []
    whole["model"]["vocab"]["unused"] = whole["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    assert build_tokenizer(config_of("HFTokenizer", tmp_path)).eod is None


def test_characters_are_bytes_with_gpt_neox_numbers():
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="CharLevelTokenizer"))
    assert tokenizer.encode("a\né") == [97, 10, 195, 169]
    assert (tokenizer.vocab_size, tokenizer.eod) == (512, 0)
    assert tokenizer.decode([72, 300, 105]) == "Hi"


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("HFTokenizer", {}, "vocab_file: HFTokenizer needs a tokenizer.json; the key is not set"),
        ("HFTokenizer", {"vocab_file": "nowhere.json"}, "vocab_file: nowhere.json does not exist"),
        ("HFTokenizer", {"vocab_file": "{folder}"}, "is a folder"),
        ("HFTokenizer", {"vocab_file": "{folder}/merges.txt"}, "vocab_file: .*merges.txt is not a tokenizer.json"),
        ("GPT2BPETokenizer", {"vocab_file": "{folder}/vocab.json"}, "merge_file: GPT2BPETokenizer needs a merges.txt"),
        ("GPT2BPETokenizer", {"vocab_file": "{folder}/merges.txt", "merge_file": "{folder}/merges.txt"}, "vocab_file .*merges.txt"),
        ("HFGPT2Tokenizer", {}, "vocab_file: HFGPT2Tokenizer needs a folder"),
        ("HFGPT2Tokenizer", {"vocab_file": "{folder}/merges.txt"}, "vocab_file: transformers cannot read .*merges.txt"),
        ("HFGPT2Tokenizer", {"vocab_file": "{empty}"}, "holds neither tokenizer.json nor vocab.json"),
        ("TiktokenTokenizer", {}, "vocab_file: TiktokenTokenizer needs the name of an encoding"),
        ("TiktokenTokenizer", {"vocab_file": "no_such_encoding"}, "no encoding 'no_such_encoding'; it has .*gpt2"),
    ],
)
def test_missing_and_damaged_files_are_named(vocabulary, tmp_path, kind, keys, message):
    if kind == "TiktokenTokenizer":
        pytest.importorskip("tiktoken")
    keys = {key: value.format(folder=vocabulary, empty=tmp_path) for key, value in keys.items()}
    with pytest.raises(TokenizerError, match=message):
        build_tokenizer(TokenizerConfig(tokenizer_type=kind, **keys))


def test_tiktoken_without_a_network_says_what_to_do(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")

    def unreachable(name):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(TokenizerError, match="could not fetch the encoding 'gpt2'.*TIKTOKEN_CACHE_DIR"):
        build_tokenizer(TokenizerConfig(tokenizer_type="TiktokenTokenizer", vocab_file="gpt2"))


def test_tiktoken_encodings(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 257})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="TiktokenTokenizer", vocab_file="gpt2"))
    assert tokenizer.encode("ab c") == [256, 32, 99]
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.decode(tokenizer.encode(TEXT))) == (258, 257, TEXT)


def test_a_vocabulary_too_small_for_bytes_is_refused(tmp_path):
    with pytest.raises(TokenizerError, match="at least 257 entries; 100"):
        train_bpe(TRAINING, 100, str(tmp_path / "tokenizer.json"))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("size", "divisible_by", "parallel", "padded"), [(50257, 128, 1, 50304), (50304, 128, 1, 50304), (50257, 128, 2, 50432), (1, 8, 4, 32)]
)
def test_padding(size, divisible_by, parallel, padded):
    assert padded_vocab_size(size, divisible_by, parallel) == padded
