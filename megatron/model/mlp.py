"""The feed-forward half of a block, plain or gated (GLU variants: Shazeer 2020)."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from megatron.config.model import ModelConfig


class MLP(nn.Module):
    """down(activation(up x)), or down(activation(gate x) * up x) where the activation is gated."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, bias = config.mlp_width, config.use_bias_in_mlp
        self.gate = nn.Linear(config.hidden_size, width, bias=bias) if config.gated else None
        self.up = nn.Linear(config.hidden_size, width, bias=bias)
        self.down = nn.Linear(width, config.hidden_size, bias=bias)
        self.activation = activation_function(config)

    def forward(self, x: Tensor) -> Tensor:
        """[b, q, hidden] -> [b, q, hidden]."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


def activation_function(config: ModelConfig) -> Callable[[Tensor], Tensor]:
    """The elementwise function; a gated activation's is that of its gate."""
    approximate_gelu = partial(gelu, approximate="tanh" if config.gelu_approximate else "none")
    functions = {"gelu": approximate_gelu, "geglu": approximate_gelu, "relu": relu, "reglu": relu, "silu": silu, "swiglu": silu}
    return functions[config.activation]
