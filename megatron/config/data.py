"""Token files, how they are split and mixed, and how windows are drawn from them."""

from typing import Literal

from megatron.config.base import Group, key


class DataConfig(Group):
    """Prefixes name a `.bin`/`.idx` pair without its ending."""

    data_path: str | list[str | float | int] | None = key(
        None, "One prefix, or GPT-NeoX's weight/prefix list; cut into train/valid/test by `split`."
    )
    train_data_paths: list[str] | None = key(None, "Prefixes of the training mixture.")
    valid_data_paths: list[str] | None = key(None, "Prefixes of the validation mixture.")
    test_data_paths: list[str] | None = key(None, "Prefixes of the test mixture.")
    train_data_weights: list[float] | None = key(None, "Weights of the training mixture; default: by number of tokens.")
    valid_data_weights: list[float] | None = key(None, "Weights of the validation mixture.")
    test_data_weights: list[float] | None = key(None, "Weights of the test mixture.")
    weight_by_num_documents: bool = key(False, "Weights of a mixture from its document counts, as in multilingual pretraining.")
    weighted_sampler_alpha: float = key(
        1.0, "With weight_by_num_documents: exponent of the shares; 1 is proportional, towards 0 is equal.", ge=0, le=1
    )
    split: str = key("969, 30, 1", "Shares of the documents of data_path for train, valid and test.")
    data_impl: Literal["mmap", "infer"] = key("mmap", "Token files are always memory-mapped; other readers are refused.")
    mmap_warmup: bool = key(False, "Read each token file once at the start, so that the page cache holds it.")
    num_workers: int = key(2, "Processes that read windows ahead of training; 0 reads in the training process.", ge=0, le=10**6)
    eod_mask_loss: bool = key(
        False, "A position whose input is the end-of-document token, and whose target begins the next document, gives no loss."
    )
    reset_position_ids: bool = key(False, "Positions restart after each end-of-document token.")
    reset_attention_mask: bool = key(False, "Tokens do not attend beyond their own document.")
