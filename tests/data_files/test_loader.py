"""The loader: which rank gets which sample of which step, with and without worker processes."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from megatron.data.errors import DataError
from megatron.data.loader import training_batches


class Numbers:
    """Sample k is [k, k, k]; no sample from `broken` on."""

    def __init__(self, broken=10**9):
        self.broken = broken

    def __getitem__(self, number):
        if number >= self.broken:
            raise DataError(f"x.bin: sample {number} is damaged")
        return np.full(3, number, dtype=np.int64)


def batches(rank=0, ranks=1, micro=2, accumulation=3, start=0, steps=2, workers=0, samples=None):
    return training_batches(
        samples or Numbers(), start_step=start, steps=steps, global_batch=micro * accumulation * ranks, micro_batch=micro,
        accumulation=accumulation, data_parallel_rank=rank, data_parallel_size=ranks, num_workers=workers,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_come_in_order(workers):
    got = list(batches(workers=workers))
    assert len(got) == 6 and all(batch.shape == (2, 3) and batch.dtype == torch.int64 for batch in got)
    assert torch.cat(got)[:, 0].tolist() == list(range(12))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_steps_samples_do_not_depend_on_the_number_of_ranks(ranks):
    per_rank = [list(batches(rank, ranks, micro=2, accumulation=8 // ranks, start=5, steps=3)) for rank in range(ranks)]
    in_order = [batch for turn in zip(*per_rank, strict=True) for batch in turn]
    assert torch.cat(in_order)[:, 0].tolist() == list(range(5 * 16, 8 * 16))


def test_resuming_goes_on_where_it_stopped():
    straight = list(batches(rank=1, ranks=2, steps=6))
    resumed = list(batches(rank=1, ranks=2, steps=2)) + list(batches(rank=1, ranks=2, start=2, steps=4, workers=1))
    assert torch.equal(torch.stack(straight), torch.stack(resumed))


def test_no_steps_no_batches():
    assert list(batches(steps=0)) == []


def test_sizes_that_do_not_multiply_are_refused():
    with pytest.raises(ValueError, match="global batch 7"):
        next(training_batches(Numbers(), start_step=0, steps=1, global_batch=7, micro_batch=2, accumulation=1, data_parallel_rank=0,
                              data_parallel_size=2, num_workers=0))  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1])
def test_a_users_mistake_arrives_as_itself(workers):
    with pytest.raises(DataError) as caught:
        list(batches(samples=Numbers(broken=7), workers=workers))
    assert str(caught.value) == "x.bin: sample 7 is damaged"
    with pytest.raises(DataError, match="^x.bin: sample 0 is damaged$"):
        next(batches(samples=Numbers(broken=0), workers=workers))


def children(pid):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_workers_end_with_the_iteration_and_have_one_thread():
    before = set(children(os.getpid()))
    iterator = batches(workers=2, steps=100)
    next(iterator)
    assert len(set(children(os.getpid())) - before) == 2
    iterator.close()
    assert wait_until(lambda: set(children(os.getpid())) <= before)

    class Threads(Numbers):
        def __getitem__(self, number):
            return np.full(3, torch.get_num_threads(), dtype=np.int64)

    assert all((batch == 1).all() for batch in batches(workers=2, samples=Threads()))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_workers_end_when_training_is_killed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, time, numpy as np\n"
        "from megatron.data.loader import training_batches\n"
        "class Numbers:\n"
        "    def __getitem__(self, k): return np.full(3, k)\n"
        "it = training_batches(Numbers(), start_step=0, steps=10**6, global_batch=1, micro_batch=1, accumulation=1,\n"
        "                      data_parallel_rank=0, data_parallel_size=1, num_workers=2)\n"
        "next(it); print('ready', flush=True); time.sleep(60)\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
    assert process.stdout.readline() == b"ready\n"
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not any(map(alive, workers)))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
