"""The papers' comparison at a scale of minutes on a CPU: train each method, evaluate it to 32 times its length, report, and judge.

    python tools/reproduce_small.py                                          # what `make reproduce-small` runs
    python tools/reproduce_small.py --methods alibi kerple_log dape_kerple --seeds 3 --output trial

Each run is `deepy.py train.py` with one process of one thread, as many at once as there are cores. It may be stopped at any point (Ctrl-C):
the same command goes on from the checkpoints, and leaves out what is finished. A method that fails does not stop the others.

Written to <output>: runs/<method>_<seed>/ (logs, evaluations, checkpoints, and run.log, what the run said), and report/: the tables and
figures of tools/analysis/compare.py, and orders.json and orders.md: which of the papers' orders appear, by the thresholds that it states.
Exit codes: 0 done (whichever orders appear), 1 a run failed, 2 a mistake in the options, 75 stopped.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402

from megatron.errors import UserError  # noqa: E402
from megatron.files import check_writable  # noqa: E402
from megatron.launch import exit_codes  # noqa: E402
from megatron.parallel.devices import usable_cores  # noqa: E402
from tools.reproduction.display import Display  # noqa: E402
from tools.reproduction.orders import judge, read_perplexities, show_verdicts, write_verdicts  # noqa: E402
from tools.reproduction.plans import METHODS, Plan, check_corpus, make_plans  # noqa: E402
from tools.reproduction.runner import run_all  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # one way to stop
    console = Console(width=None if Console().is_terminal else 160)
    try:
        check_writable(options.output)
        plans = make_plans(options.config, options.methods, options.seeds, options.output)
        failed = reproduce(plans, options.jobs, options.output, console)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return exit_codes.USER_ERROR
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here.", file=sys.stderr)
        return exit_codes.STOPPED_RESUME_ME
    for plan, code in failed.items():
        print(f"error: {plan.name} failed with exit code {code}: {plan.log} says why.", file=sys.stderr)
    return exit_codes.FAILED if failed else exit_codes.DONE


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="NAME", help="pos_emb names; dape_v2_X is dape_X with kernel 3"
    )
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each method (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("reproduce_small"), help="folder to write (default: %(default)s)")
    parser.add_argument(
        "--config", type=Path, default=ROOT / "configs/reproduce_small.yml", help="what the runs share (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=positive, default=usable_cores(), metavar="N", help="runs at once (default: the cores, %(default)s)")
    return parser


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def reproduce(plans: Sequence[Plan], jobs: int, output: Path, console: Console) -> dict[Plan, int]:
    """Make all runs, write the report of the finished ones, and say which orders appear. Returns the failed runs with their exit codes."""
    waiting = [plan for plan in plans if not plan.finished()]
    if waiting:
        check_corpus(waiting[0].config)
    with Display(plans, console) as display:
        failed = run_all(waiting, jobs, display)
    finished = [plan for plan in plans if plan.finished()]
    if finished:
        report(finished, output / "report")
        verdicts = judge(read_perplexities([plan.folder for plan in finished]), finished[0].config.model.seq_length)
        write_verdicts(verdicts, output / "report")
        show_verdicts(verdicts, console)
    return failed


def report(plans: Sequence[Plan], folder: Path) -> None:
    """Tables and figures. Raises UserError where the tool refuses the runs; it has said why."""
    command = [sys.executable, ROOT / "tools/analysis/compare.py", *(plan.folder for plan in plans), "--output", folder]
    if subprocess.run(command).returncode:
        raise UserError(f"tools/analysis/compare.py wrote no report of {', '.join(plan.name for plan in plans)}.")


if __name__ == "__main__":
    sys.exit(main())
