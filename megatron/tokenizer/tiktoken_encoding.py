"""OpenAI's encodings through `tiktoken`, which is imported only when asked for."""

from collections.abc import Iterable

from megatron.tokenizer.base import TokenizerError


class TiktokenTokenizer:
    """An encoding by name ("gpt2", "cl100k_base", ...). `tiktoken` downloads it once and keeps it in its cache folder."""

    name = "TiktokenTokenizer"

    def __init__(self, encoding_name: str | None):
        if encoding_name is None:
            raise TokenizerError("vocab_file: TiktokenTokenizer needs the name of an encoding, for example cl100k_base")
        try:
            import tiktoken
        except ImportError as error:
            raise TokenizerError("tokenizer_type: TiktokenTokenizer needs the package tiktoken: pip install tiktoken") from error
        if encoding_name not in tiktoken.list_encoding_names():
            known = ", ".join(tiktoken.list_encoding_names())
            raise TokenizerError(f"vocab_file: tiktoken has no encoding {encoding_name!r}; it has {known}")
        try:
            self._encoding = tiktoken.get_encoding(encoding_name)
        except Exception as error:  # whatever the network library raises
            raise TokenizerError(
                f"vocab_file: tiktoken could not fetch the encoding {encoding_name!r} ({type(error).__name__}). Without a network, fill a "
                f"folder with it on another machine and name that folder in the environment variable TIKTOKEN_CACHE_DIR"
            ) from error
        self.vocab_size = self._encoding.n_vocab
        self.eod = self._encoding.eot_token

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode(list(ids))
