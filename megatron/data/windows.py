"""Training windows and evaluation streams over the documents of a token file."""

from collections.abc import Sequence

import numpy as np

from megatron.data.errors import DataError
from megatron.data.token_file import TokenFile


class TokenStream:
    """Documents end to end, in the order given, as one stream of tokens. `documents` are numbers of documents of `source`.

    With `vocab_size`, a token id outside 0 .. vocab_size - 1 is a DataError, not an index error inside the model.
    """

    def __init__(self, source: TokenFile, documents: Sequence[int] | np.ndarray, vocab_size: int | None = None):
        self.source = source
        self.vocab_size = vocab_size
        documents = np.asarray(documents, dtype=np.int64)
        lengths = source.document_starts[documents + 1] - source.document_starts[documents]
        self._documents = documents  # [n]
        self.document_ends = np.cumsum(lengths)  # [n] token of this stream after each document

    def __len__(self) -> int:
        return int(self.document_ends[-1]) if len(self.document_ends) else 0

    def slice(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] int64: tokens `start` to `stop` of the stream."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"the stream has tokens 0 to {len(self)}, not {start} to {stop}")
        tokens = np.empty(stop - start, dtype=np.int64)
        done, place = 0, int(np.searchsorted(self.document_ends, start, side="right"))
        while done < len(tokens):
            document = int(self._documents[place])
            left = int(self.document_ends[place]) - start - done  # tokens of this document from here on
            take = min(left, len(tokens) - done)
            end = int(self.source.document_starts[document + 1])
            tokens[done : done + take] = self.source.tokens(end - left, end - left + take)
            done, place = done + take, place + 1
        self._check(tokens)
        return tokens

    def _check(self, tokens: np.ndarray) -> None:
        if self.vocab_size is None or not len(tokens):
            return
        smallest, largest = int(tokens.min()), int(tokens.max())
        if smallest < 0 or largest >= self.vocab_size:
            raise DataError(
                f"{self.source.token_path}: holds the token id {smallest if smallest < 0 else largest}, but the vocabulary has ids 0 to "
                f"{self.vocab_size - 1}; the file was made with another tokenizer"
            )


def contiguous(source: TokenFile, documents: Sequence[int] | np.ndarray, vocab_size: int | None = None) -> TokenStream:
    """The documents in file order as one stream, for evaluation."""
    return TokenStream(source, np.sort(np.asarray(documents, dtype=np.int64)), vocab_size)


class Windows:
    """Shuffled windows of `length + 1` tokens: `windows[k]` for every k >= 0, a function of (documents, length, seed, k) alone.

    In every epoch the documents are laid end to end in a new order and cut into windows, each of which begins with the last token of the
    one before it, so that every token but the first is predicted once; what is left at the end, less than a window, is dropped. Windows
    are visited in a new order too. Two epochs' orders are kept, which is what a loader that reads ahead needs.
    """

    def __init__(self, source: TokenFile, documents: Sequence[int] | np.ndarray, length: int, seed: int, vocab_size: int | None = None):
        self.source, self.length, self.seed, self.vocab_size = source, length, seed, vocab_size
        self.documents = np.asarray(documents, dtype=np.int64)
        self.tokens = int((source.document_starts[self.documents + 1] - source.document_starts[self.documents]).sum())
        self.windows_per_epoch = (self.tokens - 1) // length
        if self.windows_per_epoch < 1:
            raise DataError(
                f"{source.token_path}: {len(self.documents)} documents with {self.tokens} tokens are less than one window of {length} + 1 "
                f"tokens; use more data, a shorter seq_length or another split"
            )
        self._epochs: dict[int, tuple[TokenStream, np.ndarray]] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_epochs": {}}

    def __getitem__(self, number: int) -> np.ndarray:
        """[length + 1] int64: the window with this number, counted through all epochs."""
        if number < 0:
            raise IndexError(f"windows are numbered from 0; there is no {number}")
        epoch, place = divmod(number, self.windows_per_epoch)
        stream, order = self._epoch(epoch)
        start = int(order[place]) * self.length
        return stream.slice(start, start + self.length + 1)

    def _epoch(self, epoch: int) -> tuple[TokenStream, np.ndarray]:
        """The epoch's documents and the order of its windows."""
        if epoch not in self._epochs:
            while len(self._epochs) > 1:
                del self._epochs[next(iter(self._epochs))]
            # RandomState, because numpy promises that its permutations never change: a run can be resumed under another version
            random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([self.seed, epoch])))
            stream = TokenStream(self.source, random.permutation(self.documents), self.vocab_size)
            self._epochs[epoch] = stream, random.permutation(self.windows_per_epoch)
        return self._epochs[epoch]
