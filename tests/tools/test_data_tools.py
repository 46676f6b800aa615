"""The smaller data tools and prepare_data.py, as users call them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatron.config.tokenizer import TokenizerConfig
from megatron.data.errors import DataError
from megatron.data.prepare import prepare
from megatron.data.stdlib_corpus import write_stdlib_corpus
from megatron.data.token_file import TokenFile, TokenFileWriter
from megatron.tokenizer import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]


def call(script, *arguments, cwd):
    return subprocess.run([sys.executable, str(ROOT / script), *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd)


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "library"
    files = {
        "alpha.py": b"import os\n", "package/beta.py": "# naïve\n".encode(), "package/__init__.py": b"", "latin.py": b"# caf\xe9\n",
        "test/test_alpha.py": b"x", "package/tests/test_beta.py": b"x", "idlelib/idle_test/a.py": b"x", "site-packages/numpy.py": b"x",
        "notes.txt": b"x",
    }  # fmt: skip
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_stdlib_corpus_takes_modules_and_leaves_out_tests(tmp_path, library):
    corpus = write_stdlib_corpus(tmp_path / "x.jsonl", library)
    documents = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = {document["meta"]["path"]: document["text"] for document in documents}
    assert texts == {"alpha.py": "import os\n", "package/beta.py": "# naïve\n"}
    assert (corpus.documents, corpus.text_bytes, corpus.skipped) == (2, 19, 2)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none: no Python modules"):
        write_stdlib_corpus(tmp_path / "y.jsonl", tmp_path / "none")
    assert not list(tmp_path.glob("y.jsonl*"))


def test_stdlib_corpus_of_this_python_is_the_same_each_time(tmp_path):
    for name in "ab":
        result = call("tools/datasets/stdlib_corpus.py", "--output", f"{name}.jsonl", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    paths = [json.loads(line)["meta"]["path"] for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(paths) > 300 and "json/decoder.py" in paths and paths != sorted(paths)
    assert not any({"test", "tests", "idle_test", "site-packages"} & set(path.split("/")) for path in paths)


def test_train_tokenizer(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "the cat and the dog and the cat"}\n' * 10)
    tool = "tools/datasets/train_tokenizer.py"
    result = call(tool, "--input", "x.jsonl", "--vocab-size", 265, "--output", "t/tokenizer.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="HFTokenizer", vocab_file=str(tmp_path / "t" / "tokenizer.json")))
    assert tokenizer.vocab_size == 265 and tokenizer.eod is not None
    assert tokenizer.decode(tokenizer.encode("naïve\n")) == "naïve\n"
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\nnull\n')
    result = call(tool, "--input", "x.jsonl", "--output", "u/tokenizer.json", cwd=tmp_path)
    assert result.returncode == 2 and "x.jsonl:2: null" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "u").exists()


def test_merge_datasets_keeps_documents(tmp_path):
    for name, documents in (("a", [[1, 2], []]), ("b", [[3]])):
        with TokenFileWriter(tmp_path / "in" / name, np.uint16) as writer:
            for document in documents:
                writer.add_document(document)
    for inputs in (["in/b", "in/a"], ["in"]):
        result = call("tools/datasets/merge_datasets.py", "--input", *inputs, "--output-prefix", "out/x", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        merged = TokenFile(tmp_path / "out" / "x")
        expected = [[3], [1, 2], []] if len(inputs) == 2 else [[1, 2], [], [3]]
        assert [merged.document(i).tolist() for i in range(merged.documents)] == expected
    with TokenFileWriter(tmp_path / "in" / "c", np.int32) as writer:
        writer.add_document([1])
    result = call("tools/datasets/merge_datasets.py", "--input", "in", "--output-prefix", "y", cwd=tmp_path)
    assert result.returncode == 2 and "c.idx: its tokens are int32" in result.stderr
    assert not list(tmp_path.glob("y*"))


def test_prepare_makes_what_is_missing_or_out_of_date(tmp_path):
    corpus = tmp_path / "my.texts.jsonl"
    corpus.write_text('{"text": "the cat and the dog and the cat"}\n' * 10)
    arguments = ["prepare_data.py", corpus, "-d", "data", "--vocab-size", 270, "--workers", 1]
    result = call(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert '"data_path": "data/my/my_text_document"' in result.stdout and '"vocab_file": "data/my/tokenizer.json"' in result.stdout
    file = TokenFile(tmp_path / "data/my/my_text_document")
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="HFTokenizer", vocab_file=str(tmp_path / "data/my/tokenizer.json")))
    assert file.documents == 10 and tokenizer.decode(file.document(3)) == "the cat and the dog and the cat<|endoftext|>"

    def made(output):
        return [line.split("/")[-1] for line in output.splitlines() if line.startswith("making")]

    assert made(result.stdout) == ["tokenizer.json", "my_text_document.bin"]
    assert made(call(*arguments, cwd=tmp_path).stdout) == []
    (tmp_path / "data/my/my_text_document.idx").unlink()
    assert made(call(*arguments, cwd=tmp_path).stdout) == ["my_text_document.bin"]
    arguments[5] = 265
    assert made(call(*arguments, cwd=tmp_path).stdout) == ["tokenizer.json", "my_text_document.bin"]


def test_prepare_with_a_given_tokenizer_and_from_the_standard_library(tmp_path, library, monkeypatch):
    monkeypatch.setattr("megatron.data.prepare.write_stdlib_corpus", lambda output: write_stdlib_corpus(output, library))
    said = []
    prepared = prepare("stdlib", tmp_path / "data", TokenizerConfig(tokenizer_type="CharLevelTokenizer"), say=said.append)
    assert prepared.data_path == str(tmp_path / "data/stdlib/stdlib_text_document") and len(said) == 2
    file = TokenFile(prepared.data_path)
    texts = {bytes(file.document(i).tolist()) for i in range(file.documents)}
    assert texts == {b"import os\n\0", "# naïve\n\0".encode()}


def test_prepare_says_what_is_wrong(tmp_path):
    for corpus, message in (("nowhere.jsonl", "nowhere.jsonl: no such file"), ("enwik8", "enwik8: no such file")):
        result = call("prepare_data.py", corpus, cwd=tmp_path)
        assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_prepare_refuses_a_corpus_of_empty_texts(tmp_path):
    corpus = tmp_path / "empty.jsonl"
    corpus.write_text('{"text": ""}\n' * 3)
    with pytest.raises(DataError, match=r"empty\.jsonl: every text is empty"):
        prepare(str(corpus), tmp_path / "data", TokenizerConfig(tokenizer_type="CharLevelTokenizer"))
    assert not (tmp_path / "data").exists()
