"""Checkpoints on disk: whole or not there at all.

`<save>/global_stepN/` holds what DeepSpeed wrote and `manifest.json` (every file's size and SHA-256, and the layout), written last; the
folder has a temporary name until then. `<save>/latest` holds the newest folder's name and is replaced after the rename.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron.errors import UserError
from megatron.files import TEMPORARY_PREFIX, write_atomically

MANIFEST = "manifest.json"
LATEST = "latest"
FOLDER = re.compile(r"global_step(\d+)")


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or does not fit the run: says which part and what to do."""


@dataclass(frozen=True)
class Layout:
    """What decides how a checkpoint is cut into files."""

    world_size: int
    zero_stage: int
    dtype: str


def folder_name(step: int) -> str:
    """Name of the checkpoint folder of a step."""
    return f"global_step{step}"


def saved_steps(root: Path) -> list[int]:
    """Steps that have a checkpoint folder under its final name, ascending."""
    if not root.is_dir():
        return []
    return sorted(int(match[1]) for path in root.iterdir() if path.is_dir() and (match := FOLDER.fullmatch(path.name)))


def temporary_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is whole; remains of an earlier try are removed."""
    path = root / f"{TEMPORARY_PREFIX}{folder_name(step)}"
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def file_record(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as the manifest holds them."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def files_below(folder: Path) -> list[str]:
    """Every file of a checkpoint but the manifest, relative to it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def publish(written: Path, root: Path, step: int, layout: Layout, records: dict[str, Any]) -> None:
    """The temporary folder becomes `global_stepN`, then `latest` names it. Only rank 0, after all ranks wrote."""
    manifest = {"step": step, "layout": asdict(layout), "files": records}
    (written / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*written.rglob("*"), written):
        flush_to_disk(path)
    final = root / folder_name(step)
    if final.exists():  # the same step saved again after a damaged load: the old one is set aside until the new one is in place
        aside = root / f"{TEMPORARY_PREFIX}old-{folder_name(step)}"
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
        written.rename(final)
        shutil.rmtree(aside)
    else:
        written.rename(final)
    write_atomically(root / LATEST, folder_name(step))
    flush_to_disk(root)


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> tuple[Layout, dict[str, dict[str, Any]]]:
    """The layout and the file records of a checkpoint folder. Raises CheckpointError where its manifest is missing or not one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        records = {name: {"size": record["size"], "sha256": record["sha256"]} for name, record in manifest["files"].items()}
        layout = Layout(**manifest["layout"])
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no {MANIFEST} (the save did not finish, or this is not a checkpoint of this project)") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: not readable ({type(error).__name__}: {error})") from None
    if not records:
        raise CheckpointError(f"{folder / MANIFEST}: lists no files")
    return layout, records


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder (naming the file and the numbers), or None when it is whole."""
    try:
        _, records = read_manifest(folder)
    except CheckpointError as error:
        return str(error)
    return next((problem for name, record in records.items() if (problem := damage_of_file(folder / name, record))), None)


def damage_of_file(path: Path, record: dict[str, Any]) -> str | None:
    """How a file differs from its record in the manifest, or None."""
    if not path.is_file():
        return f"{path}: missing, the manifest lists it"
    if path.stat().st_size != record["size"]:
        return f"{path}: {path.stat().st_size} bytes, the manifest says {record['size']}"
    if file_record(path)["sha256"] != record["sha256"]:
        return f"{path}: its content does not have the manifest's SHA-256"
    return None


def fingerprint(folder: Path) -> str:
    """16 hexadecimal digits that are a checkpoint's own: of its files' hashes, as the manifest holds them."""
    _, records = read_manifest(folder)
    return hashlib.sha256("".join(records[name]["sha256"] for name in sorted(records)).encode()).hexdigest()[:16]


def read_layout(folder: Path) -> Layout:
    """The layout a whole checkpoint was saved with."""
    return read_manifest(folder)[0]


@dataclass(frozen=True)
class Choice:
    """The checkpoint to start from (None: from scratch) and what the log should say about how it was found."""

    step: int | None
    messages: tuple[str, ...] = ()


def choose_checkpoint(load: Path, *, step: int | None = None, may_start_anew: bool = False, needed: bool = False) -> Choice:
    """Find the newest whole checkpoint under `load`, or the one of `step`.

    Falls back over damaged ones, saying so. Nothing at all under `load` is an error unless `may_start_anew` (`load` = `save`); with
    `needed` there is no way to do without a checkpoint, and the message does not name one.
    Raises CheckpointError naming the damaged part.
    """
    steps = saved_steps(load)
    if step is not None:
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(f"iteration: {step} asked for, but {load} has no {folder_name(step)} (steps there: {there}).")
        if problem := damage(load / folder_name(step)):
            raise CheckpointError(f"checkpoint is damaged: {problem}")
        return Choice(step)
    if not steps:
        if may_start_anew and not (load / LATEST).exists():
            return Choice(None, (f"{load} has no checkpoint yet: starting from scratch.",))
        if (load / LATEST).exists():
            raise CheckpointError(f"{load / LATEST} names {read_latest(load)!r}, but {load} has no checkpoint folder.")
        reason = "has no checkpoint (no global_stepN folder)" if load.is_dir() else "is not a folder" if load.exists() else "does not exist"
        advice = (
            "Name the folder that a run has as its `save`."
            if needed
            else ("Remove `load` to start from scratch, or set `save` to the same folder.")
        )
        raise CheckpointError(f"load: {load} {reason}. {advice}")
    latest = read_latest(load)
    named = FOLDER.fullmatch(latest or "")
    first = int(named[1]) if named else steps[-1]
    messages: list[str] = []
    if latest is not None and not named:
        messages.append(f"{load / LATEST} holds {latest!r}, which names no checkpoint: looking at the newest.")
    if first not in steps:
        messages.append(f"{load / LATEST} names {folder_name(first)}, which is not there: looking at the others.")
    for candidate in sorted((s for s in steps if s <= first or first not in steps), reverse=True):
        problem = damage(load / folder_name(candidate))
        if problem is None:
            if messages:
                messages.append(f"going on from {folder_name(candidate)} instead.")
            return Choice(candidate, tuple(messages))
        messages.append(f"checkpoint is damaged: {problem}")
    raise CheckpointError("no whole checkpoint to load:\n  " + "\n  ".join(messages))


def read_latest(load: Path) -> str | None:
    """What `latest` holds, or None without that file."""
    try:
        return (load / LATEST).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"(not readable: {error.strerror})"


def set_aside_later(root: Path, step: int) -> list[str]:
    """A run that goes on from `step` leaves the checkpoints after it behind: rename them, so that nothing takes them for its own.

    Returns what the log should say.
    """
    said = []
    for later in saved_steps(root):
        if later > step:
            number = 1
            while (aside := root / f"abandoned-{folder_name(later)}-{number}").exists():
                number += 1
            (root / folder_name(later)).rename(aside)
            said.append(f"{root / folder_name(later)} is not on this run's way any more: renamed to {aside.name}.")
    return said


def remove_old(root: Path, keep: int | None) -> None:
    """Delete all but the newest `keep` checkpoints, and half-written ones. Each is renamed first, so that none is ever half there."""
    for path in root.glob(f"{TEMPORARY_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
    for step in saved_steps(root)[: -keep if keep else 0]:
        doomed = root / f"{TEMPORARY_PREFIX}old-{folder_name(step)}"
        (root / folder_name(step)).rename(doomed)
        shutil.rmtree(doomed)


def is_save_step(step: int, last: int, factor: float | None, scale: str, extra: list[int]) -> bool:
    """Whether a checkpoint is due after `step`: every `factor` steps, at 1, f, f^2, ... (`log`), at the extra ones, and at the end."""
    if step == last or step in extra:
        return True
    if factor is None:
        return False
    if scale == "linear":
        return step % int(factor) == 0
    due, exact = 1, 1.0
    while due < step and factor > 1:
        exact *= factor
        due = max(due + 1, int(exact))
    return due == step
