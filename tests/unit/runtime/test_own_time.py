"""How long a rank works on a step, apart from waiting for others."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.protocol.plausible import check_rank
from elastic_runtime.protocol.rank_link import OwnTime, RankLink, RankMessage
from elastic_runtime.script.own_time import LATE, OwnTimes, is_waiting
from elastic_runtime.script.standing import Ledger, Position
from tests.paced import until

SOON = 20.0
TRAINS = Position(1, 0, 0, True, 10)


class Looks:
    """Looks at a rank, a second apart."""

    def __init__(self, interval: float = 10.0) -> None:
        self.told: list[RankMessage] = []
        self.link = RankLink(None)
        self.link.listener = self.told.append
        self.times, self.now = OwnTimes(self.link, interval), 100.0

    def see(self, count: int, position: Position = TRAINS, *, waits: bool = False, passed: float = 1.0) -> None:
        for _ in range(count):
            self.now += passed
            self.times.seen(self.now, 1.0, position, waits)


def test_tells_how_much_of_the_time_it_waited_and_how_far_it_came() -> None:
    looks = Looks()
    looks.see(8)
    looks.see(2, waits=True)
    assert looks.told == []
    looks.see(1, replace(TRAINS, done=25))
    looks.see(10, replace(TRAINS, done=30), waits=True)
    assert looks.told == [OwnTime(10.0, 2.0, 15), OwnTime(10.0, 10.0, 5)]


def test_a_process_that_got_no_processor_did_not_wait_meanwhile() -> None:
    looks = Looks()
    looks.see(1)
    looks.see(1, waits=True, passed=10.0)
    assert looks.told == [OwnTime(10.0, LATE, 0)]


@pytest.mark.parametrize(
    "between",
    [replace(TRAINS, trains=False), replace(TRAINS, world=2, trains=False), replace(TRAINS, world=2)],
    ids=["busy", "before-the-first-commit", "another-world"],
)
def test_begins_anew_when_it_trains_again(between: Position) -> None:
    looks = Looks()
    looks.see(9, waits=True)
    looks.see(1, between)
    after = replace(between, trains=True)
    looks.see(10, after)
    assert looks.told in ([OwnTime(10.0, 0.0, 0)], [])
    looks.see(1, after)
    assert looks.told == [OwnTime(10.0, 0.0, 0)]


@given(st.lists(st.tuples(st.floats(0.01, 50.0), st.booleans(), st.integers(0, 3), st.booleans(), st.integers(0, 9))))
def test_whatever_is_seen_the_launcher_takes_what_is_told(seen: list[tuple[float, bool, int, bool, int]]) -> None:
    looks = Looks()
    for passed, waits, world, trains, done in seen:
        looks.see(1, replace(TRAINS, world=world, trains=trains, done=done), waits=waits, passed=passed)
    for each in looks.told:
        check_rank(each)


@pytest.mark.parametrize(
    "said",
    [OwnTime(0.0, 0.0, 1), OwnTime(10.0, 10.1, 1), OwnTime(10.0, -1.0, 1), OwnTime(1e9, 1.0, 1), OwnTime(1, 1, -1)],
)
def test_no_rank_says_that(said: OwnTime) -> None:
    with pytest.raises(InvalidDocument):
        check_rank(said)


def test_a_ledger_knows_how_far_the_rank_is() -> None:
    ledger = Ledger(RankLink(None))
    assert not ledger.position().trains
    ledger.in_world()
    assert not ledger.position().trains
    ledger.commits()
    first = ledger.position()
    assert (first.trains, first.done, first.native) == (True, 1, threading.get_native_id())
    ledger.commits(70)
    with ledger.busy("evaluation", 60.0):
        assert not ledger.position().trains
    assert ledger.position() == replace(first, done=70)
    ledger.in_world()
    assert (ledger.position().world, ledger.position().trains) == (first.world + 1, False)


# Where a thread is


class There:
    """Where a thread of a framework's stands, and when it may go on."""

    def __init__(self) -> None:
        self.here, self.go = threading.Event(), threading.Event()

    def sleep(self) -> None:
        """In code of the script."""
        self.here.set()
        self.go.wait(SOON)


def module(name: str, source: str) -> Callable[[There], None]:
    """``do(there)`` of a module of that name."""
    space: dict[str, Any] = {"__name__": name, "sha256": hashlib.sha256, "data": bytes(3 * 10**7)}
    exec(f"def do(there):\n    {source}", space)
    do: Callable[[There], None] = space["do"]
    return do


SLEEPS = "there.here.set(); there.go.wait(20)"
COMPUTES = "there.here.set(); [sha256(data) for _ in iter(there.go.is_set, True)]"
"""Nearly all of the time without Python's lock, as a framework does."""


@pytest.mark.parametrize(
    ("where", "source", "waits"),
    [
        ("torch.autograd.graph", SLEEPS, True),
        ("torch.autograd.graph", COMPUTES, False),
        ("torch.distributed.distributed_c10d", SLEEPS, True),
        ("elastic_runtime.engines.torch.own_group", SLEEPS, True),
        ("horovod.torch.mpi_ops", SLEEPS, True),
        ("horovod.torch.mpi_ops", COMPUTES, True),
        ("torch.utils.data.dataloader", SLEEPS, False),
        ("script", SLEEPS, False),
        # Code of the script that a framework calls is work.
        ("torch.autograd.function", "there.sleep()", False),
    ],
)
def test_knows_whether_the_rank_waits_for_others(where: str, source: str, waits: bool) -> None:
    there, ledger, do = There(), Ledger(RankLink(None)), module(where, source)

    def train() -> None:
        ledger.in_world()
        do(there)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert there.here.wait(SOON)
        at = ledger.position()
        until(lambda: (2 * sum(is_waiting(at) for _ in range(200)) > 200) is waits, "most looks say so", SOON)
    finally:
        there.go.set()
        thread.join(SOON)
