"""What a checkpoint holds, and whether it is whole: step, layout, files, parameters, and the norm of each tensor.

    python tools/ckpts/inspect.py checkpoints/125M                  # a run's `save`: its newest checkpoint, or that of --step
    python tools/ckpts/inspect.py checkpoints/125M/global_step1000 --json checkpoint.json

Every file is compared with the manifest (size and SHA-256). Then the parameters are read, one tensor at a time: up to ZeRO stage 2 as the
model has them, in the run's number format; of stage 3, which has no whole model, the float32 master weights, put together from the shards
of all processes. Their norms are Euclidean, summed in float64. Optimiser state is verified, and not shown.

Reading ZeRO-3 shards can execute code that was put into them: inspect only checkpoints that you trust.

Exit code: 0 whole, 1 damaged (each missing, damaged or superfluous file is named; parameters are shown where no listed file is damaged),
2 not a checkpoint.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # in place of this folder, where Python would find this file as its own `inspect`
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from pickle import UnpicklingError
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from megatron.errors import UserError
from megatron.files import write_atomically
from megatron.monitor.progress import track
from megatron.training.checkpoint import FOLDER, MANIFEST, CheckpointError, damage_of_file, files_below, read_manifest, saved_steps
from megatron.training.weights import read_states, read_weights

ELEMENTS = 2**22  # of a tensor, made float64 at a time


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for a damaged checkpoint, 2 for a user's mistake."""
    options = parser().parse_args(arguments)
    os.environ["DS_ACCELERATOR"] = "cpu"  # where DeepSpeed is needed, for the shards of ZeRO-3
    try:
        findings = inspect(find(options.folder, options.step))
        if options.json is not None:
            write_atomically(options.json, json.dumps(findings, indent=1) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(findings)
    return 1 if findings["problems"] else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run's checkpoint folder (its `save`), or a global_stepN folder")
    parser.add_argument("--step", type=int, help="of a run's checkpoints, the one of this step (default: the newest)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    return parser


def find(folder: Path, step: int | None) -> Path:
    """The checkpoint that is meant. Raises CheckpointError where there is none."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder.")
    if FOLDER.fullmatch(folder.name) or (folder / MANIFEST).exists():
        if step is not None:
            raise CheckpointError(f"--step: {folder} is one checkpoint; give the folder above it, or leave --step out.")
        return folder
    steps = saved_steps(folder)
    if not steps:
        raise CheckpointError(
            f"{folder}: not a checkpoint, and no global_stepN folder in it. Name a run's `save`, or a global_stepN folder."
        )
    if step is not None and step not in steps:
        raise CheckpointError(f"--step: {folder} has no checkpoint of step {step}; it has {', '.join(map(str, steps))}.")
    return folder / f"global_step{steps[-1] if step is None else step}"


def inspect(folder: Path) -> dict[str, Any]:
    """All findings, as --json writes them. Raises CheckpointError where the folder has no manifest, or whole files are not DeepSpeed's."""
    layout, records = read_manifest(folder)
    listed = {name: damage_of_file(folder / name, record) for name, record in track(records.items(), "verified", len(records))}
    damaged = [problem for problem in listed.values() if problem]
    extra = {name: f"{folder / name}: superfluous, the manifest does not list it" for name in files_below(folder) if name not in listed}
    files = [
        {"name": name, "bytes": (folder / name).stat().st_size if (folder / name).is_file() else None, "problem": problem}
        for name, problem in (listed | extra).items()
    ]
    findings: dict[str, Any] = {
        "folder": str(folder),
        "layout": {"processes": layout.world_size, "zero_stage": layout.zero_stage, "dtype": layout.dtype},
        "files": files,
        "bytes": sum(file["bytes"] or 0 for file in files),
        "problems": [*damaged, *extra.values()],
    }
    if damaged:
        return findings
    try:
        state, tensors = read_states(folder), list(read_tensors(read_weights(folder, lazy=True)))
        findings |= {name: state[name] for name in ("step", "samples", "seed")}
        findings["pos_emb"] = state["configuration"]["positional"]["pos_emb"]
    except (OSError, RuntimeError, ValueError, KeyError, UnpicklingError) as error:
        raise CheckpointError(f"{folder}: its files are whole, but no checkpoint of a run ({type(error).__name__}: {error}).") from None
    named = FOLDER.fullmatch(folder.name)
    if named and int(named[1]) != state["step"]:
        findings["problems"].append(f"{folder}: the folder's name is of another step than its content, {state['step']}")
    own = [tensor for tensor in tensors if tensor["same_as"] is None]
    return findings | {
        "parameters": sum(tensor["elements"] for tensor in own),
        "norm": math.hypot(*(tensor["norm"] for tensor in own)),
        "tensors": tensors,
    }


def read_tensors(weights: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Name, shape, number format, elements and norm of each; `same_as` names the tensor whose numbers a tied one shares."""
    first: dict[Any, str] = {}
    for name, weight in track(weights.items(), "read", len(weights)):
        memory = weight.data_ptr() if isinstance(weight, Tensor) else id(weight)  # of ZeRO-3, a tensor that is not yet put together
        same_as = first.setdefault((memory, weight.shape), name)
        yield {
            "name": name,
            "shape": list(weight.shape),
            "dtype": str(weight.dtype).removeprefix("torch."),
            "elements": weight.shape.numel(),
            "norm": euclidean_norm(weight.contiguous()),
            "same_as": None if same_as == name else same_as,
        }


@torch.no_grad()
def euclidean_norm(tensor: Tensor) -> float:
    """Square root of the sum of the squares, in float64."""
    parts = tensor.flatten().split(ELEMENTS)
    return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts))


def show(findings: dict[str, Any]) -> None:
    """The findings as tables, problems last."""
    console = Console(width=None if Console().is_terminal else 160)
    layout = findings["layout"]
    about = f"{layout['processes']} process(es), ZeRO stage {layout['zero_stage']}, {layout['dtype']}"
    if "tensors" in findings:
        about = f"step {findings['step']:,}, {findings['samples']:,} sequences, pos_emb {findings['pos_emb']}, {about}"
    print(f"{findings['folder']}: {about}")

    files = Table("file", "bytes", "manifest", title="files")
    files.columns[1].justify = "right"
    for file in findings["files"]:
        state = "agrees" if file["problem"] is None else file["problem"].partition(": ")[2]
        files.add_row(file["name"], "" if file["bytes"] is None else f"{file['bytes']:,}", state)
    files.add_section()
    files.add_row("total", f"{findings['bytes']:,}", "")
    console.print(files)

    if "tensors" in findings:
        tensors = Table("parameter", "shape", "format", "elements", "norm", title="parameters")
        for column in tensors.columns[3:]:
            column.justify = "right"
        for tensor in findings["tensors"]:
            elements = f"{tensor['elements']:,}" if tensor["same_as"] is None else f"those of {tensor['same_as']}"
            shape = " x ".join(map(str, tensor["shape"]))
            tensors.add_row(tensor["name"], shape, tensor["dtype"], elements, f"{tensor['norm']:.6g}")
        tensors.add_section()
        tensors.add_row("total", "", "", f"{findings['parameters']:,}", f"{findings['norm']:.6g}")
        console.print(tensors)
    else:
        print("The parameters were not read: listed files are missing or damaged.")
    for problem in findings["problems"]:
        print(f"damaged: {problem}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
