"""On paper: memory of a GPU, communication and speed of a run on so many GPUs, by layout. Nothing is measured; assumptions are printed.

    python tools/benchmark/plan.py -d configs recipes/dape_2-7B_512.yml --gpus 8 64
    python tools/benchmark/plan.py -d configs recipes/dape_6-7B_512.yml --gpus 8 --tp 1 --memory 39 --output plan.json

A row for each ZeRO stage and tensor-parallel size (tp); the run's own is marked *. Micro-batch and accumulation are the configuration's, so
that a run without train_batch_size has a larger batch on more GPUs. There is no pipeline (pp 1). What a run accepts is train.py's to say
(`model_parallel_size`). Sizes are in GiB. docs/planning.md explains the formulas.

Exit code: 0 where the run's own layout fits, 1 with a warning where for some number of GPUs it does not or cannot be, 2 for a mistake.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from megatron.config import Config  # noqa: E402
from megatron.config.base import ConfigError  # noqa: E402
from megatron.config.derive import complete  # noqa: E402
from megatron.errors import UserError  # noqa: E402
from megatron.files import write_atomically  # noqa: E402
from tools.benchmark.configuration import add_configuration, at_least, read_configuration  # noqa: E402
from tools.benchmark.planning.assumptions import GIBI, Assumptions, add_assumptions, read_assumptions  # noqa: E402
from tools.benchmark.planning.communication import communication  # noqa: E402
from tools.benchmark.planning.memory import FIELDS, memory  # noqa: E402
from tools.benchmark.planning.shape import Layout, Shape, read_shape, stage_of  # noqa: E402
from tools.benchmark.planning.speed import seconds, throughput  # noqa: E402

Plan = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where the run's own layout does not fit, 2 for a user's mistake."""
    options = parser().parse_args(arguments)
    try:
        config = read_configuration(options)
        machine = read_assumptions(options, config.precision.dtype)
        shape = read_shape(config, options.vocabulary)
        plans = [plan for gpus in options.gpus for plan in plans_for(config, shape, machine, gpus, options.tp, options.zero)]
        warnings = [warning for gpus in options.gpus if (warning := warn([plan for plan in plans if plan["gpus"] == gpus], machine))]
        if options.output is not None:
            about = {"configuration": options.files, "set": options.set, "vocabulary": options.vocabulary, "measured": False}
            about |= {"assumptions": machine.as_dict(), "parameters": shape.split + shape.replicated}
            write_atomically(options.output, json.dumps({**about, "plans": plans, "warnings": warnings}, indent=1) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(config, shape, machine, plans)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 1 if warnings else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_configuration(parser)
    parser.add_argument("--gpus", type=at_least(1), nargs="+", default=[8], help="numbers of GPUs (default: 8)")
    parser.add_argument("--tp", type=at_least(1), nargs="+", default=[1, 2, 4, 8], help="tensor-parallel sizes (default: 1 2 4 8)")
    parser.add_argument("--zero", type=int, choices=range(4), nargs="+", default=[0, 1, 2, 3], help="ZeRO stages (default: all)")
    parser.add_argument("--output", type=Path, help="JSON file")
    add_assumptions(parser)
    return parser


def plans_for(
    config: Config, shape: Shape, machine: Assumptions, gpus: int, tensor_parallel: Sequence[int], stages: Sequence[int]
) -> list[Plan]:
    """Of `gpus` GPUs: the run's own layout, and each possible one of these sizes and stages."""
    own = (config.parallel.model_parallel_size, stage_of(config, config.optimizer.zero_optimization.stage))
    possible = {(size, stage_of(config, stage)) for size in tensor_parallel if divides(config, gpus, size) for stage in stages}
    return [plan(config, shape, machine, Layout(gpus, *pair), own=pair == own) for pair in sorted(possible | {own})]


def divides(config: Config, gpus: int, size: int) -> bool:
    """Whether GPUs, heads and the MLP can be cut into `size` parts."""
    return not any(whole % size for whole in (gpus, config.model.num_attention_heads, config.model.kv_heads, config.model.mlp_width))


def plan(config: Config, shape: Shape, machine: Assumptions, layout: Layout, *, own: bool) -> Plan:
    """One row; where the layout is impossible, `problem` says why and there are no figures."""
    zero, precision = config.optimizer.zero_optimization, config.precision
    row: Plan = {"gpus": layout.gpus, "dp": layout.data_parallel, "tp": layout.tensor_parallel, "pp": 1, "zero_stage": layout.zero_stage}
    row |= {"own": own, "problem": None}
    try:
        layout = with_batch(config, layout)
    except ConfigError as error:
        return row | {"problem": str(error), "fits": False}
    held = memory(shape, layout, zero)
    total = sum(held.values()) + machine.reserve * GIBI
    sent = communication(shape, layout, zero, gradient_item=4 if precision.fp32_allreduce else shape.item)
    spent = seconds(shape, layout, sent, machine, overlap=zero.overlap_comm)
    return row | {
        "micro_batch": layout.micro_batch,
        "accumulation": layout.accumulation,
        "batch": layout.batch,
        "memory_bytes": held | {"reserve": machine.reserve * GIBI, "total": total},
        "fits": total <= machine.memory * GIBI,
        "sent_bytes": sent | {"total": sum(sent.values())},
        "seconds": spent,
        **throughput(shape, layout, spent["step"], machine, config.training.train_iters),
    }


def with_batch(config: Config, layout: Layout) -> Layout:
    """The layout with the run's micro-batch and accumulation. Raises ConfigError where they cannot be."""
    if not divides(config, layout.gpus, layout.tensor_parallel):
        raise ConfigError(f"{layout.gpus} GPUs, the heads or the MLP cannot be cut into {layout.tensor_parallel} parts")
    replica = config.model_copy(update={"parallel": config.parallel.model_copy(update={"model_parallel_size": 1})})
    training = complete(replica, layout.data_parallel).training
    micro, accumulation = training.train_micro_batch_size_per_gpu, training.gradient_accumulation_steps
    return Layout(layout.gpus, layout.tensor_parallel, layout.zero_stage, micro, accumulation)


def warn(plans: Sequence[Plan], machine: Assumptions) -> str | None:
    """What is wrong with the run's own layout on one number of GPUs, and which of the others fit."""
    [own] = [each for each in plans if each["own"]]
    if own["fits"]:
        return None
    fitting = ", ".join(f"tp {each['tp']} with ZeRO {each['zero_stage']}" for each in plans if each["fits"])
    what = (own["problem"] or "").rstrip(
        "."
    ) or f"needs {own['memory_bytes']['total'] / GIBI:.1f} GiB of {machine.memory:g} and does not fit"
    return f"{own['gpus']} GPUs: the run's own layout, tp {own['tp']} with ZeRO {own['zero_stage']}: {what}. " + (
        f"Of the others these fit: {fitting}." if fitting else "None of the others fits, either: more GPUs, or a smaller micro-batch."
    )


def show(config: Config, shape: Shape, machine: Assumptions, plans: Sequence[Plan]) -> None:
    """The table, and under it what it rests on."""
    title = f"{config.positional.pos_emb}, {(shape.split + shape.replicated) / 1e9:.2f} B parameters, {config.precision.dtype}, "
    title += f"length {shape.length:,}, attention {shape.backend}{', activations recomputed' if shape.recompute else ''}: "
    table = Table(title=title + "on paper, not measured")
    for name in ("GPUs", "dp", "tp", "ZeRO", "batch", *FIELDS, "total", "fits", "sent", "s/step", "tokens/s", "MFU", "days"):
        table.add_column(name, justify="right")
    for previous, each in zip([None, *plans], plans, strict=False):
        if previous is not None and previous["gpus"] != each["gpus"]:
            table.add_section()
        table.add_row(
            f"{each['gpus']}{' *' if each['own'] else ''}", str(each["dp"]), str(each["tp"]), str(each["zero_stage"]), *cells(each)
        )
    Console(width=None if Console().is_terminal else 180).print(table)
    assumed = ", ".join(f"{name} {value:g}" for name, value in machine.as_dict().items())
    print("* the run's own layout. GiB and GiB sent are one GPU's, the total with the reserve; batch = micro-batch x accumulation x dp;")
    print(f"days: {config.training.train_iters:,} steps, without evaluations and checkpoints.")
    print(f"Assumed: {assumed} (--help says what these are).")


def cells(plan: Plan) -> list[str]:
    """A row from the batch on."""
    if plan["problem"]:
        return ["impossible", *[""] * (len(FIELDS) + 1), "NO"]
    held = [f"{plan['memory_bytes'][name] / GIBI:.1f}" for name in (*FIELDS, "total")]
    figures = [f"{plan['sent_bytes']['total'] / GIBI:.1f}", f"{plan['seconds']['step']:.2f}", f"{plan['tokens_per_second']:,.0f}"]
    batch = f"{plan['batch']} = {plan['micro_batch']} x {plan['accumulation']} x {plan['dp']}"
    return [batch, *held, "yes" if plan["fits"] else "NO", *figures, f"{plan['mfu']:.0%}", f"{plan['days']:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
