"""What ranks are told of new hosts: rows of the table in :mod:`elastic_runtime.engines.horovod`.

Beside stock Horovod.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import horovod.runner.elastic.driver as stock_driver
import pytest
from horovod.common.elastic import State
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.runner.common.util import secret
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationService

from tests.unit.runtime.driver_bench import SOON, Heard, bench, wait_until


class Listener(Heard):
    """The notification service of a rank, stock Horovod's."""

    def __init__(self) -> None:
        super().__init__()
        self.key = secret.make_secret_key()
        self.service = WorkerNotificationService(self.key, "lo", self)
        self.addresses = self.service.addresses()


@pytest.fixture(scope="module")
def service() -> Iterator[Listener]:
    """One for all: it takes half a second to end."""
    made = Listener()
    yield made
    made.service.shutdown()


@pytest.fixture
def rank(service: Listener) -> Listener:
    """What rank 0 hears in this test."""
    service.heard = queue.Queue()
    return service


class CountedHosts(FixedHosts):  # type: ignore[misc]  # horovod is not typed
    """Notes how often it was asked."""

    def __init__(self, *hosts: str) -> None:
        super().__init__(dict.fromkeys(hosts, 1))
        self.asked = 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        self.asked += 1
        return dict(super().find_available_hosts_and_slots())


class Stock:
    """Stock ElasticDriver, asking for hosts every 10 ms, whose ranks never end by themselves."""

    def __init__(self, hosts: CountedHosts, minimum: int = 1) -> None:
        self.hosts, self.over = hosts, threading.Event()
        rendezvous = SimpleNamespace(init=lambda plan: None, stop=lambda: None)
        self.driver = ElasticDriver(rendezvous, hosts, minimum, None)
        self.driver.start(minimum, self._create_worker)

    def _create_worker(self, slot: Any, events: Any) -> tuple[int, float]:
        self.over.wait()
        return 1, 0.0

    def wait_for_looks(self, count: int) -> None:
        """Until it has looked at the hosts so often, from the begin to the end of the look."""
        until = self.hosts.asked + count + 1
        wait_until(lambda: self.hosts.asked >= until)


@contextmanager
def stock(*hosts: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stock]:
    monkeypatch.setattr(stock_driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.01)
    made = Stock(CountedHosts(*hosts), minimum=len(hosts))
    try:
        yield made
    finally:
        made.driver.stop()
        made.over.set()
        made.driver.get_results()


class Deaf(State):  # type: ignore[misc]  # horovod is not typed
    """A state of one rank: what it broadcasts, it hears."""

    def __init__(self) -> None:
        super().__init__(bcast_object=lambda value: value, get_rank=lambda: 0)

    def hears(self, timestamp: float, update: HostUpdateResult) -> HostsUpdatedInterrupt | None:
        """What the next commit raises after that notification."""
        self.on_hosts_updated(timestamp, update)
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            return interrupt
        return None


class TestMixed:
    """horovod#3494, #3399: a rank told of a removal alone skips the sync in which the others wait for it."""

    def test_stock_tells_of_a_removal_alone_and_the_ranks_skip_the_sync(
        self, rank: Listener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with stock("a", "b", monkeypatch=monkeypatch) as upstream:
            upstream.driver._min_num_proc = 1
            first = upstream.driver.get_coordinator_info().hostname
            upstream.driver.register_worker_server(first, 0, rank.addresses, rank.key)
            upstream.hosts.set({first: 1})
            heard = rank.hear()
        interrupt = Deaf().hears(*heard)
        assert interrupt is not None
        assert interrupt.skip_sync

    def test_every_change_is_reported_as_mixed(self) -> None:
        with bench() as ours:
            ours.begin("a", "b", "c")
            rank = ours.listen("a")
            for hosts in (["a", "b"], ["a", "b", "c", "d"], ["a", "d"]):
                ours.push(*hosts)
                heard = rank.hear()
                interrupt = Deaf().hears(*heard)
                assert heard[1] == HostUpdateResult.mixed
                assert interrupt is not None
                assert not interrupt.skip_sync

    def test_removal_below_the_minimum_while_others_join(self) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b", "c")
            rank = ours.listen("a")
            ours.push("a")  # below the minimum: nothing that the ranks could do about it
            ours.push("a", "d")
            assert rank.hear()[1] == HostUpdateResult.mixed
            answers = [ours.ready(host) for host in "abc"]
            assert ours.next_world() == ["a", "d"]
            assert ours.started.get(timeout=SOON) == "d"
            assert [answer.result(SOON).rank for answer in answers] == [0, -1, -1]
            assert [answer.result(SOON).size for answer in answers] == [2, -1, -1]

    def test_removed_then_added_before_the_barrier(self) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b", "c")
            rank = ours.listen("a")
            ours.push("a", "b")
            assert rank.hear()[1] == HostUpdateResult.mixed
            first = ours.ready("a")
            ours.push("a", "b", "d")
            answers = [first, ours.ready("b"), ours.ready("c")]
            assert ours.next_world() == ["a", "b", "d"]
            assert [answer.result(SOON).rank for answer in answers] == [0, 1, -1]


class TestTimeStamps:
    """Two changes in the same second: a state takes only a later time stamp for a change."""

    def test_stock_rounds_them_and_the_second_is_lost(self, rank: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
        moments = itertools.count(1000.1, 0.3)
        monkeypatch.setattr(stock_driver, "time", SimpleNamespace(time=lambda: next(moments)))
        state = Deaf()
        with stock("a", monkeypatch=monkeypatch) as upstream:
            upstream.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            upstream.hosts.set({"a": 1, "b": 1})
            assert state.hears(*rank.hear()) is not None
            upstream.hosts.set({"a": 1, "b": 1, "c": 1})
            assert state.hears(*rank.hear()) is None

    def test_both_are_heard(self) -> None:
        state = Deaf()
        with bench() as ours:
            ours.begin("a")
            rank = ours.listen("a")
            for hosts in (["a", "b"], ["a", "b", "c"]):
                ours.push(*hosts)
                assert state.hears(*rank.hear()) is not None


class TestRepetition:
    """A notification that comes during a reset is lost: the state forgets what it heard before."""

    def test_stock_says_it_once(self, rank: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
        with stock("a", monkeypatch=monkeypatch) as upstream:
            upstream.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            upstream.hosts.set({"a": 1, "b": 1})
            rank.hear()
            upstream.wait_for_looks(5)
            assert rank.heard.empty()

    def test_it_is_sent_again_until_the_world_is_the_wanted_one(self) -> None:
        with bench() as ours:
            ours.begin("a")
            rank = ours.listen("a")
            ours.push("a", "b")
            assert rank.hear()[0] < rank.hear()[0]
            ours.ready("a").result(SOON)
            assert ours.next_world() == ["a", "b"]
            while not rank.heard.empty():
                rank.heard.get()
            ours.push("a", "b")  # no difference, so no word
            ours.push("a")
            assert rank.hear()[1] == HostUpdateResult.mixed
            assert not ours.driver.finished()

    def test_a_change_from_before_the_rank_could_be_told_is_told_then(self) -> None:
        with bench() as ours:
            ours.begin("a")
            ours.push("a", "b")
            rank = ours.listen("a")
            assert rank.hear()[1] == HostUpdateResult.mixed

    def test_nothing_is_said_to_ranks_that_are_on_their_way_to_the_barrier(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            rank = ours.listen("a")
            answer = ours.ready("b")
            ours.push("a", "b", "c")
            ours.driver._notify_workers_host_changes(ours.driver._host_manager.current_hosts, HostUpdateResult.mixed)
            assert rank.heard.empty()
            ours.ready("a")
            assert ours.next_world() == ["a", "b", "c"]
            assert answer.result(SOON).size == 3


class TestNotifier:
    """A host that is gone blocks the notifier."""

    def test_stock_holds_the_lock_that_everything_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called, answer = threading.Event(), threading.Event()

        def blocked(timestamp: float, update: HostUpdateResult) -> None:
            called.set()
            answer.wait()

        with stock("a", monkeypatch=monkeypatch) as upstream:
            upstream.driver._worker_clients[("a", 0)] = SimpleNamespace(notify_hosts_updated=blocked)
            upstream.hosts.set({"a": 1, "b": 1})
            assert called.wait(SOON)
            assert not upstream.driver._wait_hosts_cond.acquire(blocking=False)
            answer.set()

    def test_a_rank_that_does_not_ask_holds_up_nobody(self) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b")
            ours.push("a", "c")
            answers = [ours.ready("a"), ours.ready("b")]
            assert ours.next_world() == ["a", "c"]
            assert [answer.result(SOON).rank for answer in answers] == [0, -1]
