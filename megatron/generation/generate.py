"""Continuing prompts with a trained model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from megatron.errors import UserError
from megatron.generation.sampling import sample
from megatron.model.cache import SequenceCache
from megatron.model.gpt import GPT
from megatron.model.init import named_generator
from megatron.positional.sampling import PositionSampling
from megatron.tokenizer.base import Tokenizer

PADDING = -1  # document number of what fills the shorter prompts of a batch on the left


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    maximum_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 8,
) -> Iterator[dict[str, Any]]:
    """One result per prompt, in order: {"context": prompt, "text": continuation, "length": its tokens, "finished": met an end of document}.

    The n-th prompt's randomness depends on (seed, n) alone, not on its batch; so do its positions where they are drawn, once for prompt
    and `maximum_tokens`. An empty prompt starts after an end of document.
    Raises UserError where a prompt is empty and the tokenizer has no end of document, or where prompt and continuation are longer than
    the model's positions reach.
    """
    encoded = [_encode(tokenizer, prompt) for prompt in prompts]
    model.check_length(max(map(len, encoded), default=0) + maximum_tokens)
    for start in range(0, len(encoded), batch_size):
        batch = encoded[start : start + batch_size]
        generators = [named_generator(seed, f"prompt {start + row}") for row in range(len(batch))]
        drawn = None
        if model.position_max is not None:
            sampling = PositionSampling(model.position_max, seed)
            drawn = [sampling.draw(len(ids) + maximum_tokens, f"prompt {start + row}") for row, ids in enumerate(batch)]
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        continuations = continue_batch(model, batch, generators, maximum_tokens, tokenizer.eod, torch.device(device), drawn, **settings)
        for prompt, ids in zip(prompts[start : start + batch_size], continuations, strict=True):
            finished = bool(ids) and ids[-1] == tokenizer.eod
            text = tokenizer.decode(ids[:-1] if finished else ids)
            yield {"context": prompt, "text": text, "length": len(ids) - finished, "finished": finished}


def generate_unconditional(model: GPT, tokenizer: Tokenizer, samples: int, **settings: Any) -> Iterator[dict[str, Any]]:
    """`samples` texts from nothing; settings as for `generate`."""
    return generate(model, tokenizer, [""] * samples, **settings)


def continue_batch(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    generators: Sequence[torch.Generator],
    maximum_tokens: int,
    eod: int | None,
    device: torch.device,
    drawn: Sequence[Tensor] | None = None,
    **sampling: Any,
) -> list[list[int]]:
    """Token ids that follow each prompt (non-empty), up to and including `eod`. Shorter prompts are padded on the left.

    `drawn`: for each prompt, the positions of its tokens and of `maximum_tokens` more; without, they count from 0.
    """
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])[:, None]  # [b, 1]
    places = torch.arange(longest + maximum_tokens)
    positions = (places - padding).clamp(min=0)  # [b, k]
    if drawn is not None:
        positions = torch.stack([row[index] for row, index in zip(drawn, positions, strict=True)])
    positions = positions.to(device)
    documents = torch.where(places < padding, PADDING, 0).to(device) if bool(padding.any()) else None  # [b, k]
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)  # [b, q]

    cache = SequenceCache(len(model.layers))
    continuations: list[list[int]] = [[] for _ in prompts]
    alive = [True] * len(prompts)
    with _inference(model):
        for length in range(longest, longest + maximum_tokens):
            seen = None if documents is None else documents[:, :length]
            logits = model(tokens, position_ids=positions[:, :length], document_ids=seen, last=1, cache=cache)[:, -1]  # [b, vocabulary]
            tokens = sample(logits, _uniform(generators, device), **sampling)[:, None]
            for row, token in enumerate(tokens[:, 0].tolist()):
                if alive[row]:
                    continuations[row].append(token)
                    alive[row] = token != eod
            if not any(alive):
                break
    return continuations


def _uniform(generators: Sequence[torch.Generator], device: torch.device) -> Tensor:
    """One number in [0, 1) from each row's own generator: [b]."""
    return torch.stack([torch.rand((), dtype=torch.float64, generator=generator) for generator in generators]).to(device)


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    ids = list(tokenizer.encode(prompt))
    if ids:
        return ids
    if tokenizer.eod is None:
        raise UserError("An empty prompt needs an end-of-document token to start from, and this tokenizer has none. Give a prompt.")
    return [tokenizer.eod]


@contextmanager
def _inference(model: GPT) -> Iterator[None]:
    """Evaluation mode without gradients; the model's mode is put back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
