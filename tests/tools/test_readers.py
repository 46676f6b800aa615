"""Every corpus format and everything that can be wrong with one, through the library that the tools call."""

import codecs
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest

from megatron.data.errors import DataError
from megatron.data.readers import CorpusReader, parse_record

zstandard = pytest.importorskip("zstandard")

TEXTS = ["one\ntwo", "", "naïve 漢字 🙂"]
LINES = b"".join(json.dumps({"text": text, "meta": {}}, ensure_ascii=False).encode() + b"\n" for text in TEXTS)


def read(path, keys=("text",)):
    return [parse_record(record, keys)[0] for record in CorpusReader([path])]


def zstd(data):
    return zstandard.ZstdCompressor().compress(data)


def tar(members, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


DAT = b"".join(b"%016d" % len(text.encode()) + text.encode() for text in TEXTS)
ARRAY = json.dumps(TEXTS).encode()
MEMBERS = {f"{i}.txt": text.encode() for i, text in enumerate(TEXTS)}
FORMATS = {
    "x.jsonl": LINES,
    "x.json": LINES,
    "x.jsonl.gz": gzip.compress(LINES),
    "x.json.gz": gzip.compress(LINES),
    "x.jsonl.zst": zstd(LINES),
    "frames.jsonl.zst": zstd(LINES[:20]) + zstd(LINES[20:]),
    "x.jsonl.xz": lzma.compress(LINES),
    "array.json": b"\n " + ARRAY,
    "x.json.zst": zstd(ARRAY),
    "objects.json.zst": zstd(json.dumps([{"text": text} for text in TEXTS]).encode()),
    "x.dat.zst": zstd(DAT),
    "x.jsonl.zst.tar": tar({"a.jsonl.zst": zstd(LINES)}),
    "x.tar.gz": gzip.compress(tar(MEMBERS)),
    "x.tgz": tar(MEMBERS, "w:gz"),
    "x.tar": tar(MEMBERS),
    "x.zip": zipped(MEMBERS),
    "openwebtext.tar.xz": tar({"urlsf_subset00-1_data.xz": lzma.compress(tar(MEMBERS))}, "w:xz"),
    "crlf.jsonl": LINES.replace(b"\n", b"\r\n"),
    "bom.jsonl": codecs.BOM_UTF8 + LINES,
    "no_newline_at_the_end.jsonl": LINES[:-1],
    "strings.jsonl": b"".join(json.dumps(text).encode() + b"\n" for text in TEXTS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    assert read(tmp_path / name) == TEXTS


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.txt.zst"])
def test_a_text_file_is_one_document(tmp_path, name):
    text = "\ufeffline\r\nline 漢字\n".encode()
    (tmp_path / name).write_bytes({"txt": text, "gz": gzip.compress(text), "zst": zstd(text)}[name.rpartition(".")[2]])
    assert read(tmp_path / name) == ["line\r\nline 漢字\n"]


@pytest.mark.parametrize("kind", ["Archive", "JSONArchive", "DatArchive"])
def test_what_lm_dataformat_writes(tmp_path, kind):
    archive = getattr(pytest.importorskip("lm_dataformat"), kind)(str(tmp_path / "out"))
    for text in TEXTS:
        archive.add_data(text)
    archive.commit()
    if kind == "Archive":
        archive.fh.close()
    [path] = [path for path in (tmp_path / "out").iterdir() if path.name.endswith(".zst")]
    assert read(path) == TEXTS


def test_other_keys_paragraphs_and_several_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": ["one", "two"], "title": "t"}\n')
    (tmp_path / "b.jsonl").write_text('{"title": "u", "body": "three"}\n')
    records = list(CorpusReader([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
    assert [parse_record(record, ["title", "body"]) for record in records] == [["t", "one\n\ntwo"], ["u", "three"]]
    assert records[1].where == f"{tmp_path}/b.jsonl:1"


def test_progress_reaches_the_end(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINES * 5000)
    (tmp_path / "y.jsonl.zst").write_bytes(zstd(LINES))
    reader = CorpusReader([tmp_path / "x.jsonl", tmp_path / "y.jsonl.zst"])
    shares = [reader.bytes_read / reader.total_bytes for _ in reader]
    assert shares == sorted(shares) and shares[0] < 0.5
    assert reader.bytes_read == reader.total_bytes


GOOD = b'{"text": "a"}\n'
BAD_LINES = {
    "truncated": (b'{"text": "ab', "x.jsonl:2: not valid JSON at column 10: Unterminated string.*may be truncated"),
    "blank": (b"\n" + GOOD, "x.jsonl:2: blank line"),
    "blank with spaces": (b" \t \r\n" + GOOD, "x.jsonl:2: blank line"),
    "two newlines at the end": (b"\n", "x.jsonl:2: blank line"),
    "null": (b"null\n", "x.jsonl:2: null, not a JSON object with 'text'"),
    "number": (b"17\n", "x.jsonl:2: a number, not a JSON object"),
    "array": (b"[1]\n", "x.jsonl:2: an array, not a JSON object"),
    "true": (b"true\n", "x.jsonl:2: true or false, not a JSON object"),
    "no text": (b'{"body": "a", "id": 1}\n', "x.jsonl:2: the object has no 'text', only 'body', 'id'; see --jsonl-keys"),
    "empty object": (b"{}\n", "x.jsonl:2: the object has no 'text', only nothing"),
    "text is null": (b'{"text": null}\n', "x.jsonl:2: 'text' is null, not a text"),
    "text is a number": (b'{"text": 1.5}\n', "x.jsonl:2: 'text' is a number, not a text"),
    "text is an object": (b'{"text": {"a": 1}}\n', "x.jsonl:2: 'text' is an object, not a text"),
    "mark in the middle": (codecs.BOM_UTF8 + GOOD, "x.jsonl:2: not valid JSON at column 1: Unexpected UTF-8 BOM"),
    "invalid UTF-8": (b'{"text": "\xff"}\n', "x.jsonl:2: not valid UTF-8: byte 0xff at position 11"),
    "two objects": (GOOD[:-1] + b" " + GOOD, "x.jsonl:2: more than one JSON value on the line, the second at column 15"),
    "half a character": (b'{"text": "\\ud83d"}\n', r"x.jsonl:2: the text holds half a surrogate pair, .ud83d"),
    "no JSON": (b"hello\n", "x.jsonl:2: not valid JSON at column 1"),
    "too deep": (b"[" * 200_000 + b"\n", "x.jsonl:2: JSON that cannot be read"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_lines_are_named(tmp_path, kind):
    line, message = BAD_LINES[kind]
    (tmp_path / "x.jsonl").write_bytes(GOOD + line)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.jsonl")


BAD_FILES = {
    "x.jsonl": (b"", "x.jsonl: the file is empty"),
    "only_mark.jsonl": (codecs.BOM_UTF8, "only_mark.jsonl: holds no documents"),
    "utf16.jsonl": (GOOD.decode().encode("utf-16"), "utf16.jsonl:1: not valid UTF-8"),
    "nothing.jsonl.zst": (zstd(b""), "nothing.jsonl.zst: holds no documents"),
    "empty_array.json": (b"[]", "empty_array.json: holds no documents"),
    "cut.json": (b'["a", "b', "cut.json: not valid JSON"),
    "x.parquet": (b"PAR1", "x.parquet: cannot tell the format"),
    "x.gz": (gzip.compress(LINES), "x.gz: cannot tell the format inside"),
    "cut.jsonl.zst": (zstd(LINES * 100)[:-20], "cut.jsonl.zst: truncated or damaged, cannot be read .*within a zstandard frame"),
    "no_zstd.jsonl.zst": (LINES, "no_zstd.jsonl.zst: truncated or damaged, cannot be read from its start"),
    "cut.jsonl.gz": (gzip.compress(LINES)[:-9], "cut.jsonl.gz: truncated or damaged, cannot be read"),
    "no_gzip.jsonl.gz": (LINES, "no_gzip.jsonl.gz: truncated or damaged"),
    "cut.jsonl.xz": (lzma.compress(LINES)[:-20], "cut.jsonl.xz: truncated or damaged"),
    "cut.tar.gz": (gzip.compress(tar({"a.txt": bytes(100_000)}))[:-30], "cut.tar.gz: truncated or damaged"),
    "no_tar.tar": (LINES, "no_tar.tar: truncated or damaged"),
    "cut.zip": (zipped(MEMBERS)[:-10], "cut.zip: truncated or damaged"),
    "cut.dat.zst": (zstd(DAT[:-3]), "cut.dat.zst: truncated or damaged, cannot be read after .*text 2: text 3 should have"),
    "no.dat.zst": (zstd(b"a" * 40), "no.dat.zst: text 1 does not start with its length"),
    "latin.txt": (b"caf\xe9", "latin.txt: not valid UTF-8: byte 0xe9 at position 4"),
    "latin.zip": (zipped({"ok.txt": b"a", "bad.txt": b"\xe9"}), "latin.zip/bad.txt: not valid UTF-8"),
    "bad.jsonl.zst.tar": (tar({"a.jsonl.zst": zstd(GOOD + b"{}")}), "bad.jsonl.zst.tar/a.jsonl.zst:2: the object has no 'text'"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_named(tmp_path, name):
    data, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_folders_and_missing_files_are_named(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="folder.jsonl: is a folder"):
        CorpusReader([tmp_path / "folder.jsonl"])
    with pytest.raises(DataError, match="nowhere.jsonl: no such file"):
        CorpusReader([tmp_path / "nowhere.jsonl"])
