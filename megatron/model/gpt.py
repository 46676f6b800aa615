"""The decoder: embedding, blocks, head."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron.attention.choose import Needs, choose_backend
from megatron.config import Config
from megatron.errors import UserError
from megatron.model.block import Block
from megatron.model.cache import SequenceCache
from megatron.model.context import SequenceContext, sequence_context
from megatron.model.embedding import Embedding
from megatron.model.head import Head
from megatron.positional.base import PositionalEncoding
from megatron.positional.build import build_layers
from megatron.tokenizer.padding import padded_vocab_size


class GPT(nn.Module):
    """A GPT-NeoX-shaped language model, built from the model, positional, training and parallel groups of a configuration.

    `attention_reason` says which attention backend was chosen and why. Parameters hold torch's default values until `init.initialise`.
    Raises ConfigError where the configured backend cannot do what the positional encoding needs.
    """

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        model = config.model
        rows = padded_vocab_size(vocab_size, model.make_vocab_size_divisible_by, config.parallel.model_parallel_size)
        encodings = build_layers(
            config.positional,
            model.num_layers,
            heads=model.num_attention_heads,
            head_dim=model.head_dim,
            hidden_size=model.hidden_size,
            seq_length=model.seq_length,
            max_position_embeddings=model.max_position_embeddings or model.seq_length,
        )
        first = encodings[0]
        needs = Needs(
            config.positional.pos_emb,
            first.acts_on,
            has_score_map=first.score_map is not None,
            translation_invariant=first.translation_invariant,
            window=model.sliding_window_width is not None,
            leaks=config.positional.dape_information_leakage,
        )
        attend, self.attention_reason = choose_backend(model.attention_backend, needs, config.place("attention_backend"))
        self.pos_emb, self.vocab_size = config.positional.pos_emb, vocab_size
        self.position_max = config.positional.position_max if config.positional.position_sampling == "randomized" else None
        self.window, self.locates = model.sliding_window_width, "locate" in first.acts_on
        self.checkpoint_activations = config.training.checkpoint_activations
        self.checkpoint_num_layers = config.training.checkpoint_num_layers

        embeds = "embed" in first.acts_on
        self.embedding = Embedding(model, rows, first if embeds else None)
        self.positional = first if first.shared and not embeds else None
        self.layers = nn.ModuleList(Block(model, encoding, attend) for encoding in encodings)
        self.head = Head(model, vocab_size, rows, None if model.no_weight_tying else self.embedding.word_embeddings.weight)

    def forward(
        self,
        tokens: Tensor,  # [b, q]
        labels: Tensor | None = None,  # [b, q], or [b, last]
        *,
        position_ids: Tensor | None = None,  # [k] or [b, k]
        document_ids: Tensor | None = None,  # [b, k]
        last: int | None = None,
        cache: SequenceCache | None = None,
    ) -> Tensor:
        """Logits [b, q, vocabulary], or with labels each token's cross-entropy [b, q], float32 at least.

        With `last` the head runs on the last `last` positions only. With `cache`, `tokens` follow the tokens cached so far,
        and position_ids and document_ids describe all k tokens, cached ones included. A negative document id is padding.
        Raises UserError for a position that the encoding cannot represent.
        """
        cached = cache.length if cache else 0
        context = sequence_context(tokens.shape[1], cached, tokens.device, position_ids, document_ids, self.window)
        if self.locates:
            context = context.located(self.embedding.positional, cache.append_tokens(tokens) if cache else tokens)
        x = self.run_blocks(self.embedding(tokens, context=context), context, cache)
        return self.head(x if last is None else x[:, -last:], labels)

    def run_blocks(self, x: Tensor, context: SequenceContext, cache: SequenceCache | None) -> Tensor:
        """[b, q, hidden] -> [b, q, hidden]; in training, segments of `checkpoint_num_layers` blocks are recomputed in the backward pass."""
        if not (self.checkpoint_activations and self.training and torch.is_grad_enabled()):
            return self.run_segment(x, context, cache, 0, len(self.layers))
        for start in range(0, len(self.layers), self.checkpoint_num_layers):
            x = checkpoint(self.run_segment, x, context, cache, start, start + self.checkpoint_num_layers, use_reentrant=False)
        return x

    def run_segment(self, x: Tensor, context: SequenceContext, cache: SequenceCache | None, start: int, stop: int) -> Tensor:
        """Blocks start..stop-1."""
        for layer in range(start, min(stop, len(self.layers))):
            x = self.layers[layer](x, context=context, cache=cache.layers[layer] if cache else None)
        return x

    def check_length(self, length: int) -> None:
        """Raises UserError where `length` tokens are more than the encoding can represent, or than there are positions to draw from."""
        next(iter(self.encodings().values())).check_length(self.position_max or length, self.embedding.word_embeddings.weight.dtype)
        if self.position_max is not None and length > self.position_max:
            raise UserError(f"A sequence of {length} tokens cannot have different positions below position_max {self.position_max}.")

    def encodings(self) -> dict[str, PositionalEncoding]:
        """The layers' positional encodings by name: "layer0", "layer1", ..., or "shared" for one that serves them all."""
        encodings = [layer.attention.positional for layer in self.layers]
        if encodings[0].shared:
            return {"shared": encodings[0]}
        return {f"layer{number}": encoding for number, encoding in enumerate(encodings)}

    def positional_parameter_names(self) -> set[str]:
        """Names (as in `named_parameters`) of the positional encodings' parameters."""
        modules = [(name, module) for name, module in self.named_modules() if isinstance(module, PositionalEncoding)]
        return {f"{name}.{parameter}" for name, module in modules for parameter, _ in module.named_parameters()}
