"""From the configuration to a positional encoding: one for a layer, or one for each layer with what is to be shared shared."""

from megatron.config.methods import resolve
from megatron.config.positional import PositionalConfig
from megatron.positional.base import PositionalEncoding
from megatron.positional.dape import DapeMap


def build_positional(
    config: PositionalConfig, *, heads: int, head_dim: int, hidden_size: int, seq_length: int, max_position_embeddings: int
) -> PositionalEncoding:
    """The encoding of one layer, not yet initialised (call `initialise`).

    `seq_length` is the training length, `hidden_size` = heads * head_dim. Raises ConfigError for an unknown name or an impossible
    combination.
    """
    resolved = resolve(config.pos_emb)
    encoding = resolved.method.load()(
        config,
        heads=heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        seq_length=seq_length,
        max_position_embeddings=max_position_embeddings,
    )
    if resolved.mapped:
        encoding.score_map = DapeMap(
            heads,
            reads_bias="bias" in encoding.acts_on,
            hidden=config.dape_hidden_size,
            kernel_size=config.dape_kernel_size,
            form=config.dape_form,
            starts_as_identity=config.dape_init == "identity",
            leaks=config.dape_information_leakage,
        )
    return encoding


def build_layers(config: PositionalConfig, num_layers: int, **sizes: int) -> list[PositionalEncoding]:
    """One encoding per layer (`sizes` as for `build_positional`), not yet initialised; a model asks the first one to `embed`.

    A method without a map that serves all layers is one and the same instance. Under a DAPE map each layer has its own instance, map
    included, and the method's shared parameters are the same tensors in all of them.
    """
    first = build_positional(config, **sizes)
    if first.shared:
        return [first] * num_layers
    layers = [first] + [build_positional(config, **sizes) for _ in range(num_layers - 1)]
    if first.shares_parameters:
        for layer in layers[1:]:
            _share(first, layer)
    return layers


def _share(first: PositionalEncoding, layer: PositionalEncoding) -> None:
    """Let `layer` use the parameters of `first`, except those of its map."""
    for name, parameter in first.named_parameters(recurse=False):
        setattr(layer, name, parameter)
    for name, module in first.named_children():
        if name != "score_map":
            setattr(layer, name, module)
