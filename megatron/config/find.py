"""Find a configuration file by the name that the command line gives."""

from difflib import get_close_matches
from pathlib import Path

from megatron.config.base import ConfigError

ENDINGS = (".yml", ".yaml")


def find_file(name: str | Path, directory: str | None = None) -> Path:
    """`name`, in `directory` where one is given, with or without its ending.

    Where `directory` itself has no such file, its sub-folders are searched; two candidates are an error.
    Raises ConfigError with the nearest names.
    """
    target = Path(directory or "", name)
    for candidate in _with_endings(target):
        if candidate.is_file():
            return candidate
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name a YAML file in it.")
    if directory is None:
        raise ConfigError(f"{target}: no such file.{_suggestion(target.name, target.parent, recursive=False)}")
    if not Path(directory).is_dir():
        raise ConfigError(f"{directory}: no such folder (-d).")
    wanted = {candidate.relative_to(directory).parts for candidate in _with_endings(target) if candidate.is_relative_to(directory)}
    found = sorted(file for file in _yaml_files(Path(directory)) if any(file.parts[-len(parts) :] == parts for parts in wanted))
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{name}: {len(found)} files of this name in {directory}: {', '.join(map(str, found))}; write one with its folder."
        )
    raise ConfigError(
        f"{target}: no such file, nor in a sub-folder of {directory}.{_suggestion(target.name, Path(directory), recursive=True)}"
    )


def _with_endings(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + ending) for ending in ENDINGS)]


def _yaml_files(folder: Path, recursive: bool = True) -> list[Path]:
    return [file for file in (folder.rglob("*") if recursive else folder.glob("*")) if file.suffix in ENDINGS and file.is_file()]


def _suggestion(name: str, folder: Path, recursive: bool) -> str:
    names = {file.name for file in _yaml_files(folder, recursive)} if folder.is_dir() else set()
    close = get_close_matches(name, names | {Path(other).stem for other in names}, 1)
    return f" Did you mean {close[0]}?" if close else ""
