"""Looks at the frames of another thread."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from elastic_runtime.script.frames import frame_of


@pytest.fixture
def collects() -> Iterator[list[str]]:
    """Names the phases of each garbage collection; there is one as often as there can be."""
    seen, threshold = list[str](), gc.get_threshold()

    def note(phase: str, _info: dict[str, int]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    gc.set_threshold(1)
    yield seen
    gc.set_threshold(*threshold)
    gc.callbacks.remove(note)
    gc.enable()


def test_nothing_is_collected_while_they_are_followed(collects: list[str]) -> None:
    """Python 3.11 would let other threads run in the middle of a look, and end the process by SIGSEGV."""
    with frame_of(threading.get_ident()) as frame:
        collects.clear()
        kept = [[each] for each in range(1000)]
        assert frame is not None
        assert collects == []
    assert gc.isenabled()
    kept += [[each] for each in range(1000)]
    assert collects != []


def test_a_script_that_collects_by_itself_goes_on_to(collects: list[str]) -> None:
    gc.disable()
    with frame_of(threading.get_ident()):
        pass
    assert not gc.isenabled()


def test_a_thread_that_is_not_there_has_none() -> None:
    for thread in (None, 1):
        with frame_of(thread) as frame:
            assert frame is None


def test_a_fork_waits_for_the_end_of_a_look() -> None:
    """Or its child would never collect again."""
    looks, ends, forked = threading.Event(), threading.Event(), threading.Event()

    def look() -> None:
        with frame_of(threading.get_ident()):
            looks.set()
            ends.wait(10.0)

    def fork() -> None:
        looks.wait(10.0)
        if (child := os.fork()) == 0:
            os._exit(0 if gc.isenabled() else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        forked.set()

    codes = list[int]()
    threads = [threading.Thread(target=each) for each in (look, fork)]
    for each in threads:
        each.start()
    assert looks.wait(10.0)
    assert not forked.wait(0.2)
    ends.set()
    for each in threads:
        each.join()
    assert codes == [0]
