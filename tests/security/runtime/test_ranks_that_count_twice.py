"""A rank is one of its world, however often, and under whatever name, it speaks at the rendezvous."""

from __future__ import annotations

import gc
import sys
import traceback
from functools import partial

from elastic_runtime.engines.horovod.rendezvous_server import Store
from tests.unit.runtime.driver_bench import SOON, bench, in_thread, wait_until


def test_a_rank_that_asks_twice_takes_one_place_at_the_barrier() -> None:
    """Or the world would form while the others still train, as when it asks again after a broken connection."""
    with bench(minimum=2) as ours:
        ours.begin("a", "b")
        ours.push("a", "b", "c")
        first = ours.ready("a")
        again = [in_thread(partial(ours.driver.record_ready, "a", 0)) for _ in range(3)]
        wait_until(lambda: any(each.done() for each in [first, *again]) or threads_at("_wait") >= 4)
        assert not first.done()
        assert ours.worlds.empty()
        assert ours.ready("b").result(SOON).size == 3
        assert first.result(SOON).size == 3
        assert [each.result(SOON) for each in again]


def threads_at(function: str) -> int:
    """How many threads are in a function of that name."""
    gc.disable()  # or the collector may wait for ever for the lock that is held meanwhile (python/cpython#106883)
    try:
        frames = sys._current_frames()
    finally:
        gc.enable()
    return sum(function in {frame.name for frame in traceback.extract_stack(at)} for at in frames.values())


def test_a_rank_that_is_done_twice_is_done_once() -> None:
    """Its two names for itself would empty the scope that the others still read."""
    store = Store()
    store.begin({"global": 2})
    store.put("global", "1", b"an address", "b")
    for key in ("0", "rank_0"):
        store.finish("global", key, "a")
    answers: list[tuple[int, bytes]] = []
    store.get("global", "1", lambda *answer: answers.append(answer), lambda *_: None)
    assert answers == [(200, b"an address")]
