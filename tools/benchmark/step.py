"""A whole training step: this stack against Hugging Face's GPTNeoX with torch's AdamW, and what DAPE adds to KERPLE at the papers' sizes.

    python tools/benchmark/step.py                             # against Hugging Face, 4 layers x 256 and 6 x 512, length 512
    python tools/benchmark/step.py --papers 125M 350M          # KERPLE, DAPE-KERPLE and DAPE V2 (kernel 3)
    python tools/benchmark/step.py --papers 2.7B 6.7B          # the same, from the time of one layer

All contenders run in turns in one process, on random tokens, in float32. A step of this stack is the training loop's own: DeepSpeed's
engine with the run's optimiser, clipping and all checks. From 350M on, forward and backward alone are measured, so that three models fit.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from megatron.config import Config, load_config  # noqa: E402
from megatron.config.derive import complete  # noqa: E402
from megatron.model.gpt import GPT  # noqa: E402
from megatron.model.init import initialise  # noqa: E402
from megatron.parallel.distributed import Processes, start_processes  # noqa: E402
from megatron.tokenizer import padded_vocab_size  # noqa: E402
from megatron.training.engine import build_engine  # noqa: E402
from megatron.training.step import train_step  # noqa: E402
from tools.benchmark.measure import interleaved, machine, report  # noqa: E402

SMALL = {"4 x 256": (4, 256, 4), "6 x 512": (6, 512, 8)}  # layers, hidden size, heads
PAPERS = {"125M": (12, 768, 12), "350M": (24, 1024, 16), "2.7B": (32, 2560, 32), "6.7B": (32, 4096, 32)}
WITH_OPTIMISER = ("125M",)
BY_ONE_LAYER = ("2.7B", "6.7B")
METHODS = {"KERPLE": ("kerple_log", 1), "DAPE-KERPLE": ("dape_kerple_log", 1), "DAPE V2-KERPLE": ("dape_kerple_log", 3)}
LENGTH, RATE = 512, 1e-4


def configuration(shape: tuple[int, int, int], pos_emb: str, batch: int, kernel: int = 1) -> Config:
    """Of one process in float32, as the recipes: untied embeddings, Adam with decoupled decay, clipping at 1."""
    layers, hidden, heads = shape
    keys = [f"num_layers={layers}", f"hidden_size={hidden}", f"num_attention_heads={heads}", f"seq_length={LENGTH}", "train_iters=1000"]
    keys += [f"pos_emb={pos_emb}", f"train_micro_batch_size_per_gpu={batch}", "no_weight_tying=true", "device=cpu"]
    keys += ["optimizer.type=Adam", f"optimizer.params.lr={RATE}", f"cpu_threads={torch.get_num_threads()}"]
    keys += [f"dape_kernel_size={kernel}"] if pos_emb.startswith("dape_") else []
    return complete(load_config([], keys), 1, cuda=False)


def windows(batch: int, vocabulary: int, length: int = LENGTH) -> Iterator[Tensor]:
    """The same random tokens [b, n + 1] for ever."""
    return repeat(torch.randint(0, vocabulary, (batch, length + 1), generator=torch.Generator().manual_seed(0)))


def engine_step(config: Config, vocabulary: int, processes: Processes) -> Callable[[], Any]:
    """One optimiser step of this stack."""
    engine = build_engine(config, vocabulary, processes)
    engine.train()
    batches = windows(config.training.train_micro_batch_size_per_gpu, vocabulary)
    return lambda: train_step(engine, batches, config, None, processes, 1, RATE, False)


def passes(config: Config, vocabulary: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """Forward and backward of this stack's model, without an optimiser; done when the call returns."""
    model = GPT(config, vocabulary)
    initialise(model, config.model, 0)
    model.to(device, dtype)
    tokens = next(windows(config.training.train_micro_batch_size_per_gpu, vocabulary, config.model.seq_length)).to(device)

    def run() -> None:
        model(tokens[:, :-1], labels=tokens[:, 1:]).mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def hugging_face_step(shape: tuple[int, int, int], attention: str, batch: int, vocabulary: int) -> Callable[[], Any]:
    """One step of GPTNeoXForCausalLM (rotary) with torch's AdamW and clipping at 1; the same widths, parameters and tokens."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    layers, hidden, heads = shape
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    config = GPTNeoXConfig(
        vocab_size=padded_vocab_size(vocabulary, 128, 1),
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        use_parallel_residual=False,
        use_cache=False,
        attn_implementation=attention,
        **sizes,
    )
    model = GPTNeoXForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    tokens = next(windows(batch, vocabulary))

    def step() -> float:
        loss = model(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def against_hugging_face(name: str, batch: int, vocabulary: int, repeats: int, processes: Processes) -> list[dict[str, Any]]:
    """One row a contender."""
    shape = SMALL[name]
    contenders = {
        "this stack, rotary": engine_step(configuration(shape, "rotary", batch), vocabulary, processes),
        "Hugging Face, sdpa": hugging_face_step(shape, "sdpa", batch, vocabulary),
        "Hugging Face, eager": hugging_face_step(shape, "eager", batch, vocabulary),
    }
    seconds = interleaved(contenders, repeats)
    mine = seconds["this stack, rotary"]
    return [
        {"shape": name, "vocabulary": vocabulary, "batch": batch, "contender": contender, "tokens_per_second": batch * LENGTH / each}
        | {"this_stack_is_faster_by": each / mine}
        for contender, each in seconds.items()
    ]


def papers(name: str, batch: int, vocabulary: int, repeats: int, processes: Processes) -> list[dict[str, Any]]:
    """One row a method: seconds a step, and as a share of DAPE V2's."""
    layers, hidden, heads = PAPERS[name]
    measured = "step" if name in WITH_OPTIMISER else "forward + backward"

    def seconds_of(layers: int) -> dict[str, float]:
        configs = {label: configuration((layers, hidden, heads), pos_emb, batch, kernel) for label, (pos_emb, kernel) in METHODS.items()}
        if name in WITH_OPTIMISER:
            return interleaved({label: engine_step(each, vocabulary, processes) for label, each in configs.items()}, repeats)
        return interleaved({label: passes(each, vocabulary) for label, each in configs.items()}, repeats)

    if name in BY_ONE_LAYER:
        one, two = seconds_of(1), seconds_of(2)
        seconds = {label: one[label] + (layers - 1) * (two[label] - one[label]) for label in METHODS}
        measured += f", {layers} layers from 1 and 2"
    else:
        seconds = seconds_of(layers)
    kerple, v2 = seconds["KERPLE"], seconds["DAPE V2-KERPLE"]
    return [
        {"shape": name, "batch": batch, "measured": measured, "method": label, "seconds": each}
        | {"ratio_to_kerple": each / kerple, "share_of_v2": each / v2}
        for label, each in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", nargs="*", choices=list(PAPERS), help="the time-cost table of the papers at these sizes")
    parser.add_argument("--shapes", nargs="*", choices=list(SMALL), default=list(SMALL))
    parser.add_argument("--batch", type=int, help="sequences a step; default 4, and 1 from 350M on")
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    processes = start_processes(configuration((1, 32, 2), "none", 1))
    rows = []
    if options.papers is None:
        title = f"a training step at length {LENGTH}: this stack against Hugging Face"
        for name in options.shapes:
            rows += against_hugging_face(name, options.batch or 4, options.vocabulary, options.repeats, processes)
    else:
        title = f"what DAPE adds to KERPLE at length {LENGTH}"
        for name in options.papers:
            rows += papers(name, options.batch or (4 if name == "125M" else 1), options.vocabulary, options.repeats, processes)
    command = "python tools/benchmark/step.py " + " ".join(sys.argv[1:])
    report(title, rows, options.output, machine(options.threads) | {"command": command})


if __name__ == "__main__":
    main()
