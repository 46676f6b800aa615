"""Launch a script on every device of this machine: `python deepy.py train.py -d configs 125M.yml local_setup.yml [--set key=value ...]`."""

import sys
from pathlib import Path

from megatron.errors import UserError
from megatron.launch.entry import read_keys, read_run, run_entry, uses_cuda
from megatron.launch.local import launch_local
from megatron.parallel.devices import usable_cores, visible_gpus

USAGE = "usage: python deepy.py train.py|eval.py|generate.py [-d FOLDER] CONFIG.yml [CONFIG.yml ...] [--set key=value ...]"

ONE_PROCESS = ("generate.py",)  # scripts whose work is not shared out


def main(argv: list[str]) -> int:
    """Check the configuration before any process starts; then start them and wait."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__, USAGE, sep="\n")
        return 0
    script, arguments = Path(argv[0]), argv[1:]
    if not script.is_file():
        raise UserError(f"{script}: no such script.\n{USAGE}")
    keys = read_keys(arguments)
    processes = keys.launch.num_gpus or (visible_gpus() if uses_cuda(keys) else 1)
    if script.name in ONE_PROCESS:
        processes = 1
    if uses_cuda(keys) and processes > visible_gpus():
        raise UserError(f"num_gpus: {processes} processes asked for, {visible_gpus()} GPU(s) visible here.")
    launch = read_run(arguments, world_size=processes).launch
    threads = launch.cpu_threads or max(1, usable_cores() // processes)
    command = [sys.executable, str(script), *arguments]
    return launch_local(command, processes, master_addr=launch.master_addr, master_port=launch.master_port, threads=threads)


if __name__ == "__main__":
    run_entry(main)
