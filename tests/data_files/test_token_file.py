"""Reading and writing `.bin`/`.idx`, against bytes put together by hand, and everything that can be wrong with them."""

import pickle
import struct

import numpy as np
import pytest

from megatron.data.errors import DataError
from megatron.data.token_file import TokenFile, TokenFileWriter, token_dtype

ITEM_SIZE = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}


def index_bytes(lengths, documents, code=8, version=1, magic=b"MMIDIDX\0\0", offsets=None):
    size = ITEM_SIZE.get(code, 4)
    if offsets is None:
        offsets = [size * sum(lengths[:i]) for i in range(len(lengths))]
    head = magic + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
    return head + struct.pack(f"<{len(lengths)}i{len(offsets)}q{len(documents)}q", *lengths, *offsets, *documents)


def put(folder, index, tokens):
    (folder / "x.idx").write_bytes(index)
    (folder / "x.bin").write_bytes(tokens)
    return folder / "x"


@pytest.mark.parametrize(("code", "letter"), [(1, "B"), (2, "b"), (3, "h"), (4, "i"), (5, "q"), (8, "H")])
def test_every_type_is_read(tmp_path, code, letter):
    file = TokenFile(put(tmp_path, index_bytes([2, 0, 3], [0, 1, 2, 3], code), struct.pack(f"<5{letter}", 1, 2, 3, 4, 100)))
    assert [file.document(i).tolist() for i in range(3)] == [[1, 2], [], [3, 4, 100]]
    assert file.document_lengths.tolist() == [2, 0, 3] and file.document_lengths.dtype == np.int64
    assert (file.documents, file.total_tokens, file.dtype.itemsize) == (3, 5, ITEM_SIZE[code])


def test_documents_of_several_sequences_and_of_none(tmp_path):
    file = TokenFile(put(tmp_path, index_bytes([2, 1, 3], [0, 2, 2, 3]), struct.pack("<6H", *range(6))))
    assert [file.document(i).tolist() for i in range(file.documents)] == [[0, 1, 2], [], [3, 4, 5]]
    assert file.tokens(1, 5).tolist() == [1, 2, 3, 4]


def test_writer_writes_the_format_to_the_byte(tmp_path):
    with TokenFileWriter(tmp_path / "x", np.uint16) as writer:
        writer.add_document([7, 65535])
        writer.add_document([])
        writer.add_document(np.array([1], dtype=np.int64))
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<3H", 7, 65535, 1)
    assert (tmp_path / "x.idx").read_bytes() == index_bytes([2, 0, 1], [0, 1, 2, 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_an_empty_set(tmp_path):
    with TokenFileWriter(tmp_path / "x", np.int32):
        pass
    file = TokenFile(tmp_path / "x")
    assert (file.documents, file.total_tokens, file.document_lengths.tolist()) == (0, 0, [])
    with pytest.raises(IndexError):
        file.document(0)


def test_it_travels_to_other_processes_by_name(numbered):
    file = pickle.loads(pickle.dumps(numbered("x", [3, 4])))
    assert file.document(1).tolist() == [3, 4, 5, 6]


def test_offsets_beyond_4_gib(tmp_path):
    lengths = [1_500_000_000, 1_500_000_000, 4]
    (tmp_path / "x.idx").write_bytes(index_bytes(lengths, [0, 1, 2, 3]))
    with open(tmp_path / "x.bin", "wb") as file:  # with holes: takes no room on the disk
        file.seek(2 * 3_000_000_000)
        file.write(struct.pack("<4H", 5, 6, 7, 8))
    file = TokenFile(tmp_path / "x")
    assert file.document(2).tolist() == [5, 6, 7, 8]
    assert file.document(1)[-1] == 0 and file.total_tokens == 3_000_000_004
    assert file.tokens(2_999_999_999, 3_000_000_002).tolist() == [0, 5, 6]


def test_dtype_by_vocabulary():
    assert [token_dtype(size).name for size in (300, 65_499, 65_500, 100_000)] == ["uint16", "uint16", "int32", "int32"]


GOOD = index_bytes([2, 3], [0, 1, 2])
DAMAGED = {
    "too short for a header": (GOOD[:20], "x.idx: 20 bytes are too few"),
    "truncated": (GOOD[:-4], f"x.idx: {len(GOOD) - 4} bytes, but 2 sequences and 3 document entries take {len(GOOD)}"),
    "too long": (GOOD + b"\0", f"x.idx: {len(GOOD) + 1} bytes"),
    "magic": (index_bytes([2, 3], [0, 1, 2], magic=b"TNTIDX\0\0\0"), r"x.idx: starts with b'TNTIDX"),
    "version": (index_bytes([2, 3], [0, 1, 2], version=7), "x.idx: version 7"),
    "float type": (index_bytes([2, 3], [0, 1, 2], code=6), "x.idx: type code 6"),
    "unknown type": (index_bytes([2, 3], [0, 1, 2], code=9), "x.idx: type code 9"),
    "offset": (index_bytes([2, 3], [0, 1, 2], offsets=[0, 6]), "x.idx: sequence 1 .* start at byte 6 of x.bin, .* put it at byte 4"),
    "length below zero": (index_bytes([5, -1], [0, 1, 2]), "x.idx: sequence 1 has the length -1"),
    "document index does not start at 0": (index_bytes([2, 3], [1, 2]), "x.idx: the document index covers 1 to 2; .* 0 to 2"),
    "document index does not reach the end": (index_bytes([2, 3], [0, 1]), "x.idx: the document index covers 0 to 1; .* 0 to 2"),
    "document index is empty": (index_bytes([2, 3], []), "x.idx: the document index covers nothing"),
    "document index falls": (index_bytes([2, 2, 1], [0, 2, 1, 3]), "x.idx: document 1 is said to go from sequence 2 to 1"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_index_is_refused_with_numbers(tmp_path, damage):
    index, message = DAMAGED[damage]
    with pytest.raises(DataError, match=message):
        TokenFile(put(tmp_path, index, bytes(10)))


@pytest.mark.parametrize("size", [0, 9, 11])
def test_tokens_that_do_not_fit_the_index_are_refused(tmp_path, size):
    with pytest.raises(DataError, match=rf"x.bin: {size} bytes, but x.idx says 5 tokens of uint16, which take 10"):
        TokenFile(put(tmp_path, GOOD, bytes(size)))


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere.idx: no such file"):
        TokenFile(tmp_path / "nowhere")
    (tmp_path / "x.idx").write_bytes(GOOD)
    with pytest.raises(DataError, match="x.bin: no such file"):
        TokenFile(tmp_path / "x")
    (tmp_path / "x.bin").mkdir()
    with pytest.raises(DataError, match="x.bin: is a folder"):
        TokenFile(tmp_path / "x")


def test_ids_that_do_not_fit_and_failures_leave_nothing(tmp_path):
    with pytest.raises(DataError, match="token ids 3 to 65536 do not fit uint16"), TokenFileWriter(tmp_path / "x", np.uint16) as writer:
        writer.add_document([3, 65536])
    with pytest.raises(RuntimeError, match="stop"), TokenFileWriter(tmp_path / "x", np.uint16) as writer:
        writer.add_document([3])
        raise RuntimeError("stop")
    assert not any(tmp_path.iterdir())


def test_a_failed_rewrite_keeps_the_old_file(numbered, tmp_path):
    numbered("x", [3])
    with pytest.raises(RuntimeError), TokenFileWriter(tmp_path / "x", np.uint16) as writer:
        writer.add_document([1])
        raise RuntimeError
    assert TokenFile(tmp_path / "x").document(0).tolist() == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_joined_files_keep_sequences_and_documents(tmp_path, numbered):
    several = TokenFile(put(tmp_path, index_bytes([2, 1, 3], [0, 2, 2, 3], code=4), struct.pack("<6i", *range(6))))
    with TokenFileWriter(tmp_path / "joined", np.int32) as writer:
        writer.add_file(several)
        writer.add_file(numbered("y", [2, 0]))
        writer.add_document([9])
    joined = TokenFile(tmp_path / "joined")
    assert joined.sequence_lengths.tolist() == [2, 1, 3, 2, 0, 1]
    assert [joined.document(i).tolist() for i in range(joined.documents)] == [[0, 1, 2], [], [3, 4, 5], [0, 1], [], [9]]
    with pytest.raises(DataError, match="x.idx: its tokens are int32, but"), TokenFileWriter(tmp_path / "z", np.uint16) as writer:
        writer.add_file(several)
