"""generate.py's work: a checkpoint's weights, prompts from where the configuration says, samples printed and written."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from megatron.config import Config, ConfigError
from megatron.errors import UserError
from megatron.files import check_writable, write_atomically
from megatron.generation.generate import generate
from megatron.model.gpt import GPT
from megatron.tokenizer import build_tokenizer
from megatron.tokenizer.segments import check_segment_tokens
from megatron.training.adapt import check_adapts, has_adapted
from megatron.training.agreement import other_model
from megatron.training.checkpoint import choose_checkpoint, folder_name
from megatron.training.weights import fill, fitting_weights


def sample_from_checkpoint(config: Config) -> int:
    """Sample as the generation group says; returns the exit code. Raises UserError for a missing checkpoint, tokenizer or input file."""
    keys = config.generation
    prompts = read_prompts(config)
    if keys.sample_output_file:
        check_output(Path(keys.sample_output_file))
    tokenizer = build_tokenizer(config.tokenizer)
    check_segment_tokens(config, tokenizer)
    adapted = has_adapted(config.checkpoint)
    folder = config.checkpoint.save if adapted else config.checkpoint.load or config.checkpoint.save
    if folder is None:
        raise ConfigError("load: not set, so there is no checkpoint to sample from.")
    choice = choose_checkpoint(Path(folder), step=None if adapted else config.checkpoint.iteration, needed=True)
    for message in (*config.positional.warnings(), *choice.messages):
        print(message, file=sys.stderr)
    folder = Path(folder) / folder_name(choice.step)
    adapts = config.checkpoint.adapt and not adapted
    if adapts:
        check_adapts(config, folder)
    for message in () if adapts else other_model(config, folder):
        print(message, file=sys.stderr)
    device = torch.device("cuda" if config.launch.device != "cpu" and torch.cuda.is_available() else "cpu")
    model = GPT(config, tokenizer.vocab_size)
    fill(model, fitting_weights(model, folder, adapt=adapts))
    model.to(device).eval()
    print(f"sampling from {folder}", file=sys.stderr)
    options = {"maximum_tokens": keys.maximum_tokens, "temperature": keys.temperature, "top_k": keys.top_k, "top_p": keys.top_p}
    written = []
    try:
        for index, prompt in enumerate(prompts):
            for sample in generate(model, tokenizer, [prompt], seed=config.training.seed + index, device=device, **options):
                written.append(json.dumps(sample))
                print(f"--- {prompt!r}\n{sample['text']}", flush=True)
    finally:  # whatever ended the sampling
        if keys.sample_output_file and written:
            write_atomically(Path(keys.sample_output_file), "".join(f"{line}\n" for line in written))
            print(f"wrote {keys.sample_output_file}", file=sys.stderr)
    return 0


def check_output(path: Path) -> None:
    """Find out before the sampling, not after it, that the output file cannot be written."""
    if path.is_dir():
        raise UserError(f"sample_output_file: {path} is a folder; name a file.")
    check_writable(path.parent)


def read_prompts(config: Config) -> Iterator[str]:
    """The prompts, each as often as it is to be sampled."""
    keys = config.generation
    if keys.text_gen_type == "unconditional":
        return iter([""] * keys.num_samples)
    if keys.text_gen_type == "interactive":
        return typed_prompts()
    if keys.sample_input_file is None:
        raise ConfigError("text_gen_type: input-file needs sample_input_file.")
    path = Path(keys.sample_input_file)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a JSON string may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"sample_input_file: {path} cannot be read ({error}).") from None
    if path.suffix == ".jsonl":
        lines = [text_of(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError(f"sample_input_file: {path} holds no prompt.")
    return iter([line for line in lines for _ in range(keys.num_samples)])


def typed_prompts() -> Iterator[str]:
    """Prompts from the keyboard until an empty one or the end of input."""
    with suppress(EOFError):
        while prompt := input("prompt> "):
            yield prompt


def text_of(line: str, place: str) -> str:
    """The `text` of a JSON line."""
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place}: not a JSON object with `text` ({type(error).__name__}: {error}).") from None
    if not isinstance(text, str):
        raise UserError(f"{place}: `text` is a {type(text).__name__}, not a string.")
    return text
