"""Floating-point operations of the model, by part, and what follows from them: TFLOP/s and model FLOPs utilisation (MFU).

What is counted: the matrix products, a multiplication and an addition as two operations. Elementwise work (norms, softmax, activations,
residuals, rotations, closed-form biases such as ALiBi's and KERPLE's) and table look-ups are not, and neither is what a batch shares
(FIRE's bias, Transformer-XL's projected sinusoids). This is the convention of PaLM (appendix B) and of GPT-NeoX, with two consequences:

* Queries meet the whole n keys of a sequence, although the causal mask hides half of them. A backend that skips the masked half
  computes less than is counted, and its MFU benefits.
* DAPE's map over the heads, which those papers do not have, is counted on the (n + 1) / 2 keys that the mask leaves on average: the map of
  a masked pair is nobody's model, only a waste. Its cost per (query, key) pair and layer is two products: `channels x D x kernel`
  and `D x heads x kernel`, with one channel a head for the scores and one for the biases, where there are any (DAPE, section 3).

The backward pass of a product takes two products of the same size, hence training = 3 x forward. Activations recomputed in the backward
pass are work of the hardware, not of the model: they count in `hardware` alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron.config.methods import resolve
from megatron.monitor.devices import peak_tflops

if TYPE_CHECKING:
    from megatron.config.config import Config

__all__ = ["FlopsByPart", "dape_flops_per_pair", "flops_per_token", "model_flops_utilisation", "peak_tflops"]


@dataclass(frozen=True)
class FlopsByPart:
    """Forward FLOPs of one token, all layers together, by part of the model."""

    projections: float  # queries, keys, values and the output of attention
    attention: float  # scores and the weighted sum of the values, over the whole sequence
    positional: float  # the products of CoPE and Transformer-XL
    dape: float  # DAPE's map over the heads
    mlp: float
    vocabulary: float  # logits
    recompute: bool = False  # whether the blocks' forward pass runs again in the backward pass

    @property
    def forward(self) -> float:
        """FLOPs of a forward pass, per token."""
        return sum(self.by_part().values())

    def by_part(self) -> dict[str, float]:
        """`forward` under the names of megatron.model.count's parts; `scores`, which has no parameters, is between its two neighbours."""
        return {
            "embedding": 0.0,
            "attention": self.projections,
            "scores": self.attention,
            "positional": self.positional,
            "dape": self.dape,
            "mlp": self.mlp,
            "norms": 0.0,
            "head": self.vocabulary,
        }

    @property
    def total(self) -> float:
        """FLOPs of a forward and a backward pass, per token: the model's work in training, what MFU counts."""
        return 3 * self.forward

    @property
    def hardware(self) -> float:
        """`total`, and the recomputed forward pass of the blocks under `checkpoint_activations`: what the device is asked to do."""
        return self.total + (self.forward - self.vocabulary if self.recompute else 0)


def flops_per_token(config: "Config", vocab_size: int, length: int) -> FlopsByPart:
    """FLOPs per token of `length`-token sequences. `vocab_size` is the number of logits that are computed."""
    model, positional = config.model, config.positional
    products = resolve(positional.pos_emb).method.products(positional, length)
    hidden, heads_width = model.hidden_size, model.num_attention_heads * model.head_dim
    kv_width = model.kv_heads * model.head_dim
    mlp_products = 3 if model.gated else 2
    return FlopsByPart(
        projections=2 * model.num_layers * hidden * (2 * heads_width + 2 * kv_width),
        attention=2 * model.num_layers * 2 * length * heads_width,
        positional=2 * model.num_layers * products * heads_width,
        dape=model.num_layers * (length + 1) / 2 * _map_flops_per_pair(config),
        mlp=2 * model.num_layers * mlp_products * hidden * model.mlp_width,
        vocabulary=2 * hidden * vocab_size,
        recompute=config.training.checkpoint_activations,
    )


def dape_flops_per_pair(heads: int, hidden: int, kernel: int, channels: int) -> int:
    """Forward FLOPs of DAPE's map at one (query, key) pair: `channels` -> `hidden` -> `heads`, each layer `kernel` keys wide."""
    return 2 * channels * hidden * kernel + 2 * hidden * heads * kernel


def dape_channels(heads: int, adds_bias: bool, form: str) -> int:
    """How many numbers DAPE's map reads at a pair, over a method with or without a bias, for `dape_form`."""
    return 2 * heads if adds_bias and not form.endswith("f(b)") else heads


def model_flops_utilisation(tflops: float, peak_tflops: float | None) -> float | None:
    """MFU, the share of a device's peak that trains the model (0 ... 1); None where the peak is unknown."""
    return None if peak_tflops is None else tflops / peak_tflops


def _map_flops_per_pair(config: "Config") -> int:
    """Forward FLOPs of a layer's DAPE map at one (query, key) pair; 0 without a map."""
    resolved, positional, heads = resolve(config.positional.pos_emb), config.positional, config.model.num_attention_heads
    if not resolved.mapped:
        return 0
    channels = dape_channels(heads, resolved.method.adds_bias, positional.dape_form)
    return dape_flops_per_pair(heads, positional.dape_hidden_size, positional.dape_kernel_size, channels)
