"""Threads for uploads: as an executor's, and to the very end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from elastic_runtime.checkpoint.senders import Senders


def test_work_is_done_by_at_most_so_many_threads_at_once() -> None:
    senders, met = Senders(2), threading.Barrier(2)
    futures = [senders.submit(lambda: (met.wait(10), threading.get_ident())[1]) for _ in range(4)]
    assert len({future.result(10) for future in futures}) == 2
    senders.close()


def test_what_work_raises_is_raised_by_its_result() -> None:
    senders = Senders(1)
    failed = senders.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(10)
    assert senders.submit(lambda: 7).result(10) == 7
    senders.close()


def test_cancelled_work_is_not_done() -> None:
    senders, go_on, done = Senders(1), threading.Event(), list[int]()
    first = senders.submit(go_on.wait)
    second = senders.submit(lambda: done.append(1))
    assert second.cancel()
    go_on.set()
    assert first.result(10)
    senders.close()
    assert done == []


def test_without_threads_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    senders = Senders(4)
    assert senders.submit(threading.get_ident).result(0) == threading.get_ident()
    assert senders.submit(lambda: 2).result(0) == 2
    senders.close()


@pytest.mark.parametrize("where", ["in a thread that outlives the main one", "in an exit handler"])
def test_work_is_done_while_the_interpreter_ends(where: str) -> None:
    program = """
import atexit, sys, threading, time
import concurrent.futures.thread as pool
from elastic_runtime.checkpoint.senders import Senders
def late():
    while not pool._shutdown:
        time.sleep(0.01)
    senders = Senders(2)
    print(sum(future.result() for future in [senders.submit(lambda n=n: n) for n in range(5)]))
    senders.close()
if "exit handler" in sys.argv[1]:
    atexit.register(late)
else:
    pool.ThreadPoolExecutor(1).submit(late)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, where], check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "10\n"
