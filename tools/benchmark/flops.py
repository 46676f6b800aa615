"""FLOPs and parameters by part of a configuration's model, and the share that DAPE's map adds: counted, and with --measure timed.

    python tools/benchmark/flops.py -d configs 125M.yml dape_kerple.yml --lengths 512 1024 8192
    python tools/benchmark/flops.py -d configs recipes/dape_2-7B_512.yml --measure --output flops.json

Counted as in megatron/monitor/flops.py: matrix products alone, a multiplication and an addition as two; scores and A.V over all n keys of a
sequence, the map over the (n + 1) / 2 keys that the causal mask leaves. "Causal" shares count scores and A.V over those (n + 1) / 2 too,
which is what block-wise attention comes close to computing. A backward pass is twice its forward pass.

--measure times forward + backward of the model, with the map and without it, in turns on this machine (on a GPU in the run's number
format, on a CPU in float32): of the whole model up to --whole-below parameters, else all layers from the time of models of one and two.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402

from megatron.config import Config  # noqa: E402
from megatron.config.methods import resolve  # noqa: E402
from megatron.errors import UserError  # noqa: E402
from megatron.files import write_atomically  # noqa: E402
from megatron.model.count import count_parameters  # noqa: E402
from megatron.model.gpt import GPT  # noqa: E402
from megatron.monitor.flops import flops_per_token  # noqa: E402
from megatron.tokenizer import padded_vocab_size  # noqa: E402
from tools.benchmark.configuration import add_configuration, at_least, read_configuration  # noqa: E402
from tools.benchmark.measure import interleaved, machine, report  # noqa: E402
from tools.benchmark.step import passes  # noqa: E402

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a user's mistake."""
    options = parser().parse_args(arguments)
    try:
        config = read_configuration(options)
        lengths = options.lengths or [config.model.seq_length]
        counted = [count(config, options.vocabulary, length) for length in lengths]
        for each in counted:
            rows = [*each["parts"], {"part": "total", **each["total"]}]
            report(f"{config.positional.pos_emb} at length {each['length']:,}: parameters, and FLOPs of a token", rows, None, {})
        if any(each["dape"] for each in counted):
            rows = [{"length": each["length"], **each["dape"]} for each in counted]
            report("share of the map", rows, None, {})
        about: dict[str, Any] = {"configuration": options.files, "set": options.set, "vocabulary": options.vocabulary}
        if options.measure:
            torch.set_num_threads(options.threads)
            for each in counted:
                each["measured"] = measure(config, options, each["length"])
            rows = [{"length": each["length"], **row} for each in counted for row in each["measured"]]
            report(f"measured: forward + backward of {options.batch} sequence(s)", rows, None, {})
            about |= machine(options.threads) | {"batch": options.batch}
        if options.output is not None:
            write_atomically(options.output, json.dumps({**about, "lengths": counted}, indent=1) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_configuration(parser)
    parser.add_argument("--lengths", type=at_least(1), nargs="+", help="tokens of a sequence (default: seq_length)")
    parser.add_argument("--measure", action="store_true", help="also time the model on this machine")
    parser.add_argument("--batch", type=at_least(1), default=1, help="sequences that are timed at once (default: %(default)s)")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="timed runs, of which the median counts (default: %(default)s)")
    parser.add_argument("--threads", type=at_least(1), default=torch.get_num_threads(), help="CPU threads (default: %(default)s)")
    parser.add_argument(
        "--whole-below", type=at_least(0), default=200_000_000, help="time whole models up to so many parameters (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="JSON file")
    return parser


def count(config: Config, vocabulary: int, length: int) -> dict[str, Any]:
    """Parameters and FLOPs by part at one length, and the map's shares (None without a map)."""
    model = config.model
    padded = padded_vocab_size(vocabulary, model.make_vocab_size_divisible_by, config.parallel.model_parallel_size)
    flops, parameters = flops_per_token(config, padded, length), count_parameters(config, vocabulary)
    parts = [
        {
            "part": part,
            "parameters": parameters.get(part, 0),
            "parameter_share": parameters.get(part, 0) / parameters["total"],
            "forward_flops": forward,
            "training_flops": 3 * forward,
            "flops_share": forward / flops.forward,
        }
        for part, forward in flops.by_part().items()
    ]
    total = {"parameters": parameters["total"], "forward_flops": flops.forward, "training_flops": flops.total}
    hidden_from_a_query = flops.attention * (1 - (length + 1) / (2 * length))
    causal = flops.forward - hidden_from_a_query
    dape = {
        "flops_share": flops.dape / flops.forward,
        "flops_share_causal": flops.dape / causal,
        "against_scores_causal": flops.dape / (flops.attention - hidden_from_a_query),
    }
    return {
        "length": length,
        "parts": parts,
        "total": total | {"hardware_flops": flops.hardware},
        "dape": dape if resolve(config.positional.pos_emb).mapped else None,
    }


def measure(config: Config, options: argparse.Namespace, length: int) -> list[dict[str, Any]]:
    """One row with the map and, where there is one, one without: seconds, TFLOP/s, and the map's share of time and of FLOPs."""
    resolved = resolve(config.positional.pos_emb)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = config.precision.dtype if device == "cuda" else "fp32"
    layers, vocabulary = config.model.num_layers, options.vocabulary

    def contenders(layers: int) -> dict[str, Config]:
        names = dict.fromkeys([resolved.name, resolved.base])
        return {name: changed(config, name, length, options.batch, layers) for name in names}

    def seconds_of(layers: int) -> dict[str, float]:
        runs = {name: passes(each, vocabulary, device, DTYPES[dtype]) for name, each in contenders(layers).items()}
        return interleaved(runs, options.repeats)

    with torch.device("meta"):
        GPT(changed(config, resolved.name, length, options.batch, 1), vocabulary).check_length(length)
    if layers <= 2 or count_parameters(config, vocabulary)["total"] <= options.whole_below:
        measured, seconds = "whole model", seconds_of(layers)
    else:
        one, two = seconds_of(1), seconds_of(2)
        measured, seconds = f"{layers} layers, scaled from 1 and 2", {n: one[n] + (layers - 1) * (two[n] - one[n]) for n in one}
    padded = padded_vocab_size(vocabulary, config.model.make_vocab_size_divisible_by, config.parallel.model_parallel_size)
    work = {name: options.batch * length * flops_per_token(each, padded, length).hardware for name, each in contenders(layers).items()}
    rows = [
        {"pos_emb": name, "measured": measured, "device": device, "dtype": dtype, "seconds": seconds[name]}
        | {"tflops": work[name] / seconds[name] / 1e12, "map_share_of_flops": None, "map_share_of_time": None}
        for name in seconds
    ]
    if resolved.mapped:
        shares = [1 - each[resolved.base] / each[resolved.name] for each in (work, seconds)]
        rows[0] |= dict(zip(("map_share_of_flops", "map_share_of_time"), shares, strict=True))
    return rows


def changed(config: Config, pos_emb: str, length: int, batch: int, layers: int) -> Config:
    """The configuration with another method, sequence length, micro-batch and depth."""
    return config.model_copy(
        update={
            "positional": config.positional.model_copy(update={"pos_emb": pos_emb}),
            "model": config.model.model_copy(update={"seq_length": length, "num_layers": layers}),
            "training": config.training.model_copy(update={"train_micro_batch_size_per_gpu": batch}),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
