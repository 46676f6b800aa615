"""DAPE: attention scores refined by a small network over the heads (DAPE; Zheng et al. 2024a, and DAPE V2; 2024b).

With S the scores and B the bias of any base method, A = S + B + f(S, B), where f looks at all heads of a (query, key) pair at once: two
layers of width 2h -> D -> h. DAPE V2 widens both layers to k neighbouring keys of the same query row.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from megatron.config.base import ConfigError
from megatron.positional.initialise import fill_as_linear

SLOPE = 0.01  # of LeakyReLU below zero


class DapeMap(nn.Module):
    """The map over the heads: one set of weights for every kernel size, k = 1 being plain DAPE.

    A row's hidden map is zero left of the row's document, and goes on to the right as if more (masked, hence zero) columns followed. So
    row i depends on its document's columns up to i alone: a row decoded against cached keys is the row of the full computation, and a
    document's rows are the same wherever it stands in the window and whatever it is packed with.
    """

    def __init__(
        self,
        heads: int,
        *,
        reads_bias: bool,
        hidden: int,
        kernel_size: int = 1,
        form: str = "s+b+f(s,b)",
        starts_as_identity: bool = False,
        leaks: bool = False,
    ):
        """`reads_bias`: the base method has a bias B. Raises ConfigError for an even kernel and for a form that cannot be as asked.

        `leaks`: the ablation of DAPE V2 that shows why the triangle is needed. Scores of later keys are not zeroed before the kernel.
        """
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ConfigError(f"`dape_kernel_size: {kernel_size}` has no middle: choose 1 (DAPE) or an odd number from 3 (DAPE V2).")
        if form == "s+b+f(b)" and not reads_bias:
            raise ConfigError(
                "`dape_form: s+b+f(b)` reads the bias alone, and this `pos_emb` has none: choose another form, or a method with a bias."
            )
        if starts_as_identity and form == "s+f(s,b)" and reads_bias:
            raise ConfigError(
                "`dape_form: s+f(s,b)` leaves the bias to the map, so no map starts as the identity (`dape_init: identity`, which `adapt` "
                "sets): choose another form."
            )
        self.starts_as_identity = starts_as_identity
        self.reads_scores, self.reads_bias, self.adds_bias = form != "s+b+f(b)", reads_bias, form != "s+f(s,b)"
        self.kernel_size, self.leaks = kernel_size, leaks
        channels = heads * (self.reads_scores + self.reads_bias)  # c: the scores of all heads, then the biases of all heads
        self.hidden_weight = nn.Parameter(torch.zeros(hidden, channels, kernel_size))  # [D, c, k], k = 0 multiplies the leftmost key
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.output_weight = nn.Parameter(torch.zeros(heads, hidden, kernel_size))  # [h, D, k]
        self.output_bias = nn.Parameter(torch.zeros(heads))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Start both layers as torch does, or the last one as zeros: f = 0, with a gradient for that layer at once."""
        fill_as_linear(self.hidden_weight, self.hidden_bias, generator)
        if self.starts_as_identity:
            self.output_weight.zero_()
            self.output_bias.zero_()
        else:
            fill_as_linear(self.output_weight, self.output_bias, generator)

    def forward(self, hook: Literal["refine", "tensors"], *arguments: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        """`score_map("refine", scores, bias, allowed)` is `score_map.refine(scores, bias, allowed)`; ZeRO-3 gathers them on a call."""
        return getattr(self, hook)(*arguments)

    def tensors(self) -> tuple[Tensor, ...]:
        """Hidden weight [D, c, k] and bias [D], output weight [h, D, k] and bias [h]: copies that outlast the call."""
        return tuple(parameter.clone() for parameter in self.parameters())

    def refine(self, scores: Tensor, bias: Tensor | None, allowed: Tensor, starts: Tensor | None = None) -> Tensor:
        """Scores [b, h, q, k], bias None or [h, q, k] or [b, h, q, k], allowed bool [..., q, k] -> scores [b, h, q, k], before masking.

        Columns k are all keys from the start of the sequence on. `starts` [b, q] is the column in which each row's document begins (None:
        column 0 for all). Computes in float32 at least, whatever the type of the weights.
        """
        high = torch.promote_types(torch.promote_types(scores.dtype, self.hidden_weight.dtype), torch.float32)
        scores = scores.to(high)
        features = [scores] if self.reads_scores else []
        if self.reads_bias:
            bias = bias.to(high).expand_as(scores)
            features.append(bias)
        reach = self.kernel_size // 2
        features = torch.cat(features, dim=1)  # [b, c, q, k]
        if not self.leaks:
            features = features.masked_fill(~allowed, 0.0)
        hidden = _mix(_pad(features, reach, 2 * reach), self.hidden_weight, self.hidden_bias)  # [b, D, q, k + reach]
        hidden = leaky_relu(hidden, SLOPE, inplace=True)
        if starts is not None and reach:
            in_front = torch.arange(hidden.shape[-1], device=hidden.device) < starts[..., None]  # [b, q, k + reach]
            hidden = hidden.masked_fill(in_front[:, None], 0.0)
        change = _mix(_pad(hidden, reach, 0), self.output_weight, self.output_bias)  # [b, h, q, k]
        return scores + bias + change if self.reads_bias and self.adds_bias else scores + change

    def statistics(self) -> dict[str, float]:
        """Norms (Frobenius) of the two layers' weights and of their biases."""
        return {f"{name}_norm": parameter.detach().float().norm().item() for name, parameter in self.named_parameters()}


def _pad(maps: Tensor, left: int, right: int) -> Tensor:
    """Columns of zeros on both sides; the maps themselves where there are none to add."""
    return pad(maps, (left, right)) if left or right else maps


def _mix(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """maps [b, c, q, n], weight [o, c, k], bias [o] -> [b, o, q, n - k + 1]: cross-correlation along the keys, in the maps' type.

    A sum of k products over channels rather than a convolution: those may run at reduced (TF32) precision by default on a GPU.
    """
    weight, mixed = weight.to(maps.dtype), bias.to(maps.dtype)[None, :, None]  # mixed: [b, o, q * (n - k + 1)] from the first product on
    batch, _, queries, width = maps.shape
    columns = width - weight.shape[-1] + 1
    for u in range(weight.shape[-1]):
        mixed = torch.baddbmm(mixed, weight[..., u].expand(batch, -1, -1), maps[..., u : u + columns].flatten(2))
    return mixed.unflatten(-1, (queries, columns))
