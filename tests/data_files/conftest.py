"""Token files made for a test."""

import numpy as np
import pytest

from megatron.data.token_file import TokenFile, TokenFileWriter


@pytest.fixture
def make_token_file(tmp_path):
    """make_token_file("name", [[1, 2], [3]]) -> the TokenFile with these documents."""

    def make(name, documents, dtype=np.uint16):
        with TokenFileWriter(tmp_path / name, dtype) as writer:
            for document in documents:
                writer.add_document(document)
        return TokenFile(tmp_path / name)

    return make


@pytest.fixture
def numbered(make_token_file):
    """numbered("name", lengths): documents of these lengths whose tokens are 0, 1, 2, ... through the whole file."""

    def make(name, lengths, dtype=np.int32):
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return make_token_file(name, [np.arange(a, b) for a, b in zip(starts[:-1], starts[1:], strict=True)], dtype)

    return make
