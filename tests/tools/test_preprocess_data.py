"""`tools/datasets/preprocess_data.py` as users call it, and what it leaves behind when something goes wrong."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron.config.tokenizer import TokenizerConfig
from megatron.data import preprocess as preprocessing
from megatron.data.errors import DataError
from megatron.data.preprocess import Job, preprocess
from megatron.data.token_file import TokenFile

TOOL = Path(__file__).resolve().parents[2] / "tools" / "datasets" / "preprocess_data.py"
CHARACTERS = TokenizerConfig(tokenizer_type="CharLevelTokenizer")


def call(*arguments, **options):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text, "title": text[:3]}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    return write_lines(tmp_path / "corpus.jsonl", [f"document {i}\n" + "word " * (i % 40) for i in range(1500)])


def output(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_and_several_workers_write_the_same_bytes(tmp_path, corpus):
    for workers in (1, 3):
        result = call("--input", corpus, "--output-prefix", tmp_path / f"out{workers}/x", "--tokenizer-type", "CharLevelTokenizer",
                      "--append-eod", "--workers", workers, "--log-interval", "500", cwd=tmp_path)  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "documents/s" in result.stderr and "MB/s" in result.stderr and "left" in result.stderr
        assert result.stdout.split() == [f"{tmp_path}/out{workers}/x_text_document.{end}" for end in ("bin", "idx")]
    one, three = output(tmp_path / "out1"), output(tmp_path / "out3")
    assert sorted(one) == ["x_text_document.bin", "x_text_document.idx"] and one == three
    file = TokenFile(tmp_path / "out1" / "x_text_document")
    assert file.documents == 1500 and file.dtype.name == "uint16"
    assert bytes(file.document(7).tolist()) == b"document 7\n" + b"word " * 7 + b"\0"


def test_several_inputs_and_keys(tmp_path):
    first, second = (write_lines(tmp_path / f"{name}.jsonl", texts) for name, texts in (("a", ["hello", ""]), ("b", ["world"])))
    result = call("--input", f"{first},{second}", "--jsonl-keys", "text", "title", "--output-prefix", tmp_path / "x",
                  "--tokenizer-type", "CharLevelTokenizer")  # fmt: skip
    assert result.returncode == 0, result.stderr
    for key, texts in (("text", ["hello", "", "world"]), ("title", ["hel", "", "wor"])):
        file = TokenFile(tmp_path / f"x_{key}_document")
        assert [bytes(file.document(i).tolist()).decode() for i in range(3)] == texts


def test_torch_is_not_imported(tmp_path, corpus):
    script = f"import sys; sys.argv = ['x']; import runpy; runpy.run_path({str(TOOL)!r}); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout == "False\n"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "blank line"),
        (b"null\n", "null"),
        (b'{"x": 1}\n', "no 'text'"),
        (b'{"text": "\xff"}\n', "UTF-8"),
        (b'{"text": "a', "not valid JSON"),
    ],
)
def test_a_bad_line_is_one_message_and_nothing_is_left(tmp_path, corpus, line, message, workers):
    with open(corpus, "ab") as file:
        file.write(line)
    if workers == 1:
        result = call("--input", corpus, "--output-prefix", tmp_path / "out/x", "--tokenizer-type", "CharLevelTokenizer")
        assert (result.returncode, result.stdout) == (2, "")
        problem = result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr
    else:
        with pytest.raises(DataError) as caught:
            preprocess([corpus], tmp_path / "out/x", Job(CHARACTERS), workers=workers)
        problem = str(caught.value)
    assert f"{corpus}:1501: " in problem and message in problem
    assert list((tmp_path / "out").iterdir()) == []


def test_mistakes_before_the_first_line(tmp_path, corpus):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    model = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    whole = {"--input": corpus, "--output-prefix": tmp_path / "out/x", "--tokenizer-type": "CharLevelTokenizer"}
    cases = [
        ({"--input": empty}, [], "empty.jsonl: the file is empty"),
        ({"--input": tmp_path}, [], "is a folder"),
        ({"--input": tmp_path / "nowhere.jsonl"}, [], "no such file"),
        ({"--tokenizer-type": "HFTokenizer"}, [], "vocab_file: HFTokenizer needs a tokenizer.json"),
        (
            {"--tokenizer-type": "HFTokenizer", "--vocab-file": tmp_path / "tokenizer.json"},
            ["--append-eod"],
            "tokenizer.json has no end-of-document token <|endoftext|>; leave out --append-eod",
        ),
        ({"--input": ","}, [], "--input names nothing; give at least one"),
        ({"--jsonl-keys": ","}, [], "--jsonl-keys names nothing"),
        ({"--jsonl-keys": "text,text"}, [], "--jsonl-keys: text is there more than once"),
        ({"--vocab-file": ""}, [], "--vocab-file and --merge-file must not be empty"),
        ({"--workers": 0}, [], "--workers must be at least 1"),
        ({"--output-prefix": corpus / "x"}, [], "cannot write"),
    ]
    for change, flags, message in cases:
        result = call(*[word for pair in {**whole, **change}.items() for word in pair], *flags)
        assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr, (message, result.stderr)
        assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_message_and_nothing_is_left(tmp_path, corpus):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing beyond the limit fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    result = call("--input", corpus, "--output-prefix", tmp_path / "out/x", "--tokenizer-type", "CharLevelTokenizer", preexec_fn=limit)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert f"error: cannot write {tmp_path}/out/x_text_document.bin: " in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


def endless(tmp_path):
    """preprocess_data.py at work on a corpus that is large enough to be interrupted."""
    corpus = write_lines(tmp_path / "large.jsonl", ["word " * 400] * 60_000)
    options = ["--output-prefix", tmp_path / "out/x", "--tokenizer-type", "CharLevelTokenizer", "--workers", 2, "--log-interval", 100]
    command = [sys.executable, TOOL, "--input", corpus, *options]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert "documents/s" in process.stderr.readline()
    return process


def group_members(group):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry))
    return found


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_kill_leaves_nothing_under_the_final_name_and_no_workers(tmp_path):
    process = endless(tmp_path)
    process.kill()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stderr.close()
    assert not list((tmp_path / "out").glob("*.bin")) and not list((tmp_path / "out").glob("*.idx"))
    assert wait_until(lambda: not group_members(process.pid))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_termination_and_ctrl_c_leave_nothing(tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):
        process = endless(tmp_path)
        process.send_signal(number)
        rest = process.communicate(timeout=30)[1]
        assert process.returncode not in (0, 2) and "Traceback" not in rest
        assert list((tmp_path / "out").iterdir()) == []
        assert wait_until(lambda group=process.pid: not group_members(group))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_a_worker_that_dies_is_reported(tmp_path):
    process = endless(tmp_path)
    workers = [pid for pid in group_members(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "Traceback" not in rest
    assert "error: a worker process died" in rest
    assert list((tmp_path / "out").iterdir()) == []


def test_reading_ahead_is_bounded(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(preprocessing, "BATCH_RECORDS", 10)
    progress = []
    total = preprocess([corpus], tmp_path / "out/x", Job(CHARACTERS), workers=2, report=progress.append)
    assert total.documents == 1500 and [step.documents for step in progress] == list(range(0, 1501, 10))
    assert total.share == 1.0 and total.tokens == TokenFile(tmp_path / "out/x_text_document").total_tokens
