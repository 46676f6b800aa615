"""The blocks of an attention call dealt out over the cores of a CPU, a Python thread each.

A block's operations are too small to share a core's work among several: torch's own threads gain little on them. Blocks are independent.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Item, Result = TypeVar("Item"), TypeVar("Result")


def deal_out(work: Callable[[Sequence[Item]], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """Results of `work` on shares of `items`, as many at once as torch has threads; the caller's choice of gradients holds in them.

    Items are dealt out to and fro (0, 3, 4, 7 to the first of two), which evens out costs that fall along the list. The shares depend
    on the number of threads alone, so a run repeats itself exactly. A GPU gets all items from the calling thread.
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    count = min(threads, len(items))
    if count == 1:
        return [work(items)]
    enabled = torch.is_grad_enabled()

    def run(share: Sequence[Item]) -> Result:
        with torch.set_grad_enabled(enabled):
            return work(share)

    shares = [
        [item for place, item in enumerate(items) if number in (place % (2 * count), 2 * count - 1 - place % (2 * count))]
        for number in range(count)
    ]
    return list(_pool(threads).map(run, shares))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch computes on one core; kept, for a new one costs more than a block."""
    pool = ThreadPoolExecutor(threads, "attention")
    list(pool.map(_use_one_core, [Barrier(threads)] * threads))
    torch.set_num_threads(threads)  # what a thread sets for itself is also torch's default for threads to come
    return pool


def _use_one_core(all_started: Barrier) -> None:
    torch.get_num_threads()  # a thread's first question sets it to the default
    torch.set_num_threads(1)
    all_started.wait()
