"""The shape of the network: layers, widths, norms, activations, initialisation, dropout."""

from typing import Literal

from megatron.config.base import Group, key

Initialisation = Literal["normal", "scaled_normal", "small_init", "wang_init"]


class ModelConfig(Group):
    """Keys that decide which parameters exist and how a layer computes."""

    num_layers: int = key(..., "Number of transformer blocks.", ge=1, le=10**6)
    hidden_size: int = key(..., "Width of the residual stream.", ge=1, le=10**7)
    num_attention_heads: int = key(..., "Number of query heads; must divide hidden_size.", ge=1, le=10**6)
    num_kv_heads: int | None = key(
        None, "Number of key/value heads (grouped-query attention); default: num_attention_heads.", ge=1, le=10**6
    )
    intermediate_size: int | None = key(
        None,
        "Width inside the MLP; default 4 x hidden_size, and 8/3 x hidden_size rounded up to mlp_multiple_of for gated activations.",
        ge=1,
        le=10**8,
    )
    mlp_multiple_of: int = key(1, "The MLP width is rounded up to a multiple of this.", ge=1, le=10**7)
    seq_length: int = key(2048, "Training length in tokens.", ge=1, le=10**7)
    max_position_embeddings: int | None = key(
        None,
        "Rows of a learned position table (`pos_emb: learned`; nothing else reads it); longer sequences are an error. Default: seq_length.",
        ge=1,
        le=10**7,
    )
    norm: Literal["layernorm", "rmsnorm"] = key("layernorm", "Normalisation before attention and MLP, and at the end.")
    layernorm_epsilon: float = key(1e-5, "Epsilon of layernorm.", gt=0)
    rms_norm_epsilon: float = key(1e-8, "Epsilon of rmsnorm.", gt=0)
    activation: Literal["gelu", "relu", "silu", "swiglu", "geglu", "reglu"] = key("gelu", "MLP activation; the *glu ones are gated.")
    gelu_approximate: bool = key(False, "Use the tanh approximation of GELU.")
    use_bias_in_norms: bool = key(True, "Layernorm has an additive bias.")
    use_bias_in_attn_linear: bool = key(True, "Query/key/value and attention output projections have a bias.")
    use_bias_in_mlp: bool = key(True, "MLP projections have a bias.")
    gpt_j_residual: bool = key(False, "Parallel residual: attention and MLP read the same residual stream.")
    gpt_j_tied: bool = key(False, "With gpt_j_residual: attention and MLP share one norm.")
    no_weight_tying: bool = key(False, "Untie the output projection from the word embeddings.")
    embedding_layernorm: bool = key(False, "Normalise the word embeddings before the first block.")
    init_method: Initialisation = key("normal", "Initialisation of embeddings and of projections into a block.")
    output_layer_init_method: Initialisation = key("scaled_normal", "Initialisation of projections back into the residual stream.")
    init_method_std: float = key(0.02, "Standard deviation of `normal` and `scaled_normal`.", gt=0)
    hidden_dropout: float = key(0.0, "Dropout on embeddings and on what a block adds to the residual stream.", ge=0, lt=1)
    attention_dropout: float = key(0.0, "Dropout on attention probabilities.", ge=0, lt=1)
    make_vocab_size_divisible_by: int = key(
        128, "The vocabulary is padded to a multiple of this (times model_parallel_size).", ge=1, le=10**7
    )
    attention_backend: Literal["auto", "eager", "sdpa", "flex", "flash", "blockwise"] = key(
        "auto", "How attention is computed; a backend that cannot do what the config asks is an error."
    )
    sliding_window_width: int | None = key(
        None, "A token sees this many tokens, itself and those before it: a baseline for length extrapolation. Default: no window.", ge=1
    )
    apply_query_key_layer_scaling: bool = key(
        False,
        "Accepted as false only: the trick exists to keep fp16 scores small, and scores here are float32.",
        json_schema_extra={"only": False},
    )

    @property
    def head_dim(self) -> int:
        """Width of one head (d)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads (g); equals the query heads unless `num_kv_heads` says otherwise."""
        return self.num_kv_heads or self.num_attention_heads

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate projection (two input projections)."""
        return self.activation.endswith("glu")

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP after defaults and rounding."""
        width = self.intermediate_size or (-(-8 * self.hidden_size // 3) if self.gated else 4 * self.hidden_size)
        return -(-width // self.mlp_multiple_of) * self.mlp_multiple_of
