"""A thread that waits inside torch is told from one that works, or waits for something else."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.distributed import distributed_c10d

from elastic_runtime.engines.torch.cutting import Standstill

THREAD_TIMEOUT = 10.0


def stood(act: Callable[[threading.Event], object], end: Callable[[], None] = lambda: None) -> float:
    """Most seconds that are told of a thread that does this for half a second."""
    begun, ends = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        act(ends)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(THREAD_TIMEOUT)
    standstill = Standstill(thread.ident or 0)
    until, most = time.monotonic() + 0.5, 0.0
    while time.monotonic() < until:
        most = max(most, standstill.seconds())
        time.sleep(0.02)
    ends.set()
    end()
    thread.join(THREAD_TIMEOUT)
    assert not thread.is_alive()
    assert standstill.seconds() == 0.0, "there is no such thread any more"
    return most


def test_a_wait_inside_torch_is_one() -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    assert stood(lambda _: future.wait(), lambda: future.set_result(1)) > 0.2


def test_a_wait_for_others_in_a_loop_is_one() -> None:
    """As NCCL's, of a rank that connects to one that is gone."""
    wait = compile("wait()", distributed_c10d.__file__, "eval")
    # It computes for a second of processor time in one call, without Python's lock, on any machine.
    hashed = partial(hashlib.pbkdf2_hmac, "sha256", b"", b"")
    begun = time.thread_time()
    hashed(100_000)
    in_a_loop = partial(hashed, int(100_000 / (time.thread_time() - begun)))
    assert stood(lambda _: eval(wait, {"wait": in_a_loop})) > 0.2


def test_a_wait_for_something_else_is_none() -> None:
    assert stood(lambda ends: ends.wait(THREAD_TIMEOUT)) == 0.0


def test_computing_inside_torch_is_none() -> None:
    matrix = torch.rand(300, 300)

    def compute(ends: threading.Event) -> None:
        while not ends.is_set():
            torch.linalg.norm(matrix @ matrix)

    assert stood(compute) < 0.1
