"""Attention alone, forward and backward: block-wise against the published way of computing, as ratios of interleaved runs.

    python tools/benchmark/attention.py                        # time: the targets of docs/performance.md
    python tools/benchmark/attention.py --threads 2 --repeats 7 --output attention.json
    python tools/benchmark/attention.py --memory              # peak memory, each case in a process of its own
    python tools/benchmark/attention.py --long 32768          # forward alone at a great length: time and memory

12 heads of 64, a map of width 32, float32, as in the 125M models.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from megatron.attention.blockwise import blockwise_attention  # noqa: E402
from megatron.attention.mask import AttentionMask  # noqa: E402
from megatron.config.positional import PositionalConfig  # noqa: E402
from megatron.positional.base import PositionalEncoding  # noqa: E402
from megatron.positional.build import build_positional  # noqa: E402
from tools.benchmark import published  # noqa: E402
from tools.benchmark.measure import interleaved, machine, peak_mebibytes, report  # noqa: E402

HEADS, HEAD_DIM, WIDTH = 12, 64, 32
Attend = Callable[[Tensor, Tensor, Tensor, PositionalEncoding], Tensor]


@dataclass(frozen=True)
class Case:
    """`pos_emb` computed block by block, against a baseline; `target` is the largest ratio that is accepted."""

    pos_emb: str
    kernel: int
    batch: int
    tokens: int
    baseline: str  # published (the same encoding, all at once), eager_without_map, sdpa
    target: float


CASES = [
    *(Case("dape_kerple_log", 1, b, n, "published", target) for b, n, target in ((4, 512, 1 / 5), (1, 1024, 1 / 5), (1, 2048, 1 / 8))),
    *(Case("dape_kerple_log", 3, b, n, "published", target) for b, n, target in ((4, 512, 1 / 5), (1, 1024, 1 / 6), (1, 2048, 1 / 7))),
    *(Case("dape_kerple_log", 1, batch, n, "eager_without_map", 0.7) for batch, n in ((4, 512), (1, 1024), (1, 2048))),
    *(Case(name, 1, 1, 1024, "sdpa", 0.6 if name == "fire" else 0.4) for name in ("kerple_log", "alibi", "t5", "fire")),
]
MEMORY_CASES = [Case("dape_kerple_log", 1, 1, n, "published", target) for n, target in ((1024, 1 / 15), (2048, 1 / 30))]


def encoding(pos_emb: str, kernel: int, tokens: int) -> PositionalEncoding:
    """Initialised as for training."""
    config = PositionalConfig(pos_emb=pos_emb, dape_kernel_size=kernel, dape_hidden_size=WIDTH, fire_hidden_size=WIDTH)
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "hidden_size": HEADS * HEAD_DIM}
    positional = build_positional(config, **sizes, seq_length=tokens, max_position_embeddings=tokens)
    positional.initialise(torch.Generator().manual_seed(0), 0.02)
    return positional


def blockwise(q: Tensor, k: Tensor, v: Tensor, positional: PositionalEncoding) -> Tensor:
    """The product's own."""
    places = torch.arange(q.shape[2])
    return blockwise_attention(q, k, v, positional, places, places, AttentionMask(places, places))


def step(attend: Attend, positional: PositionalEncoding, batch: int, tokens: int, backward: bool = True) -> Callable[[], None]:
    """A forward pass and, if asked, a backward pass with gradients for everything."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(batch, HEADS, tokens, HEAD_DIM, generator=generator).requires_grad_(backward) for _ in range(3))

    def run() -> None:
        with torch.set_grad_enabled(backward):
            output = attend(q, k, v, positional)
        if backward:
            output.sum().backward()

    return run


def contenders(case: Case) -> dict[str, Callable[[], None]]:
    """The two that are measured in turns."""
    positional = encoding(case.pos_emb, case.kernel, case.tokens)
    against = encoding(case.pos_emb.removeprefix("dape_"), 1, case.tokens) if case.baseline == "eager_without_map" else positional
    baseline = published.sdpa if case.baseline == "sdpa" else published.eager
    return {
        "blockwise": step(blockwise, positional, case.batch, case.tokens),
        "baseline": step(baseline, against, case.batch, case.tokens),
    }


def time_case(case: Case, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    seconds = interleaved(contenders(case), repeats)
    return _row(case) | _verdict(seconds["blockwise"], seconds["baseline"], "seconds", case.target)


def memory_case(case: Case) -> dict[str, Any]:
    """One row of the table; each contender runs in a process of its own, which reports how much its peak grew."""
    grown = {}
    for name in ("blockwise", "baseline"):
        command = [sys.executable, __file__, "--grow", name, "--case", str(MEMORY_CASES.index(case))]
        grown[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return _row(case) | _verdict(grown["blockwise"], grown["baseline"], "mebibytes", case.target)


def grow(name: str, case: Case) -> float:
    """Mebibytes by which one step raises this process's peak, after a short one has brought in all code."""
    short = Case(case.pos_emb, case.kernel, 1, 16, case.baseline, case.target)
    contenders(short)[name]()
    run = contenders(case)[name]
    before = peak_mebibytes()
    run()
    return peak_mebibytes() - before


def long_forward(tokens: int, kernel: int) -> dict[str, Any]:
    """Forward alone."""
    positional = encoding("dape_kerple_log", kernel, tokens)
    step(blockwise, positional, 1, 64, backward=False)()
    run = step(blockwise, positional, 1, tokens, backward=False)
    before, start = peak_mebibytes(), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"pos_emb": "dape_kerple_log", "kernel": kernel, "tokens": tokens, "seconds": seconds, "mebibytes": peak_mebibytes() - before}


def _row(case: Case) -> dict[str, Any]:
    return {"pos_emb": case.pos_emb, "kernel": case.kernel, "batch": case.batch, "tokens": case.tokens, "baseline": case.baseline}


def _verdict(mine: float, baseline: float, unit: str, target: float) -> dict[str, Any]:
    ratio = mine / baseline
    return {
        f"blockwise_{unit}": mine,
        f"baseline_{unit}": baseline,
        "ratio": ratio,
        "target": target,
        "met": "yes" if ratio <= target else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each contender")
    parser.add_argument("--only", default="", help="cases whose row contains this text")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--long", type=int, metavar="TOKENS")
    parser.add_argument("--output", help="JSON file")
    parser.add_argument("--grow", help=argparse.SUPPRESS)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.grow:
        print(grow(options.grow, MEMORY_CASES[options.case]))
        return
    if options.long:
        title, rows = "attention, forward alone", [long_forward(options.long, kernel) for kernel in (1, 3)]
    elif options.memory:
        title, rows = "attention, forward + backward: growth of peak memory", [memory_case(case) for case in MEMORY_CASES]
    else:
        chosen = [case for case in CASES if options.only in " ".join(map(str, _row(case).values()))]
        title, rows = "attention, forward + backward: median seconds", [time_case(case, options.repeats) for case in chosen]
    command = "python tools/benchmark/attention.py " + " ".join(sys.argv[1:])
    report(title, rows, options.output, machine(options.threads) | {"command": command})


if __name__ == "__main__":
    main()
