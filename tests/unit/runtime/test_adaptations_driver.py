"""The driver's rows of the table in :mod:`elastic_runtime.adaptations`, beside stock Horovod where that can be."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import horovod.runner.elastic.driver as stock_driver
import pytest
from horovod.common.elastic import State
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.runner.elastic.discovery import FixedHosts, HostManager
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.registration import WorkerStateRegistry
from horovod.runner.elastic.worker import HostUpdateResult

from elastic_runtime.adaptations import rendezvous as our_rendezvous
from elastic_runtime.adaptations.driver import OrderedHostManager, PushedHosts, SessionEnd
from tests.unit.runtime.driver_bench import SOON, Listener, bench, in_thread, listener, wait_until


@pytest.fixture(scope="module")
def service() -> Iterator[Listener]:
    """One for all: Horovod's takes half a second to end."""
    with listener() as made:
        yield made


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

    def test_every_change_is_reported_as_mixed(self, rank: Listener) -> None:
        with bench() as ours:
            ours.begin("a", "b", "c")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            for hosts in (["a", "b"], ["a", "b", "c", "d"], ["a", "d"]):
                ours.push(*hosts)
                heard = rank.hear()
                interrupt = Deaf().hears(*heard)
                assert heard[1] == HostUpdateResult.mixed
                assert interrupt is not None
                assert not interrupt.skip_sync

    def test_removal_below_the_minimum_while_others_join(self, rank: Listener) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b", "c")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            ours.push("a")  # below the minimum: nothing that the ranks could do about it
            ours.push("a", "d")
            assert rank.hear()[1] == HostUpdateResult.mixed
            answers = [ours.ready(host) for host in "abc"]
            assert ours.next_world() == ["a", "d"]
            assert ours.started.get(timeout=SOON) == "d"
            assert [answer.result(SOON).rank for answer in answers] == [0, -1, -1]
            assert [answer.result(SOON).size for answer in answers] == [2, -1, -1]

    def test_removed_then_added_before_the_barrier(self, rank: Listener) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b", "c")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
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

    def test_both_are_heard(self, rank: Listener) -> None:
        state = Deaf()
        with bench() as ours:
            ours.begin("a")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
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

    def test_it_is_sent_again_until_the_world_is_the_wanted_one(self, rank: Listener) -> None:
        with bench() as ours:
            ours.begin("a")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
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

    def test_a_change_from_before_the_rank_could_be_told_is_told_then(self, rank: Listener) -> None:
        with bench() as ours:
            ours.begin("a")
            ours.push("a", "b")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            assert rank.hear()[1] == HostUpdateResult.mixed

    def test_nothing_is_said_to_ranks_that_are_on_their_way_to_the_barrier(self, rank: Listener) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            answer = ours.ready("b")
            ours.push("a", "b", "c")
            ours.driver._notify_workers_host_changes(ours.driver._host_manager.current_hosts, HostUpdateResult.mixed)
            assert rank.heard.empty()
            ours.ready("a")
            assert ours.next_world() == ["a", "b", "c"]
            assert answer.result(SOON).size == 3


class TestEarlyExit:
    """A rank that ends with 0 while others train."""

    def test_stock_ends_the_job_without_an_error(self) -> None:
        ended: list[str | None] = []
        driver = SimpleNamespace(finished=lambda: False, stop=lambda error_message=None: ended.append(error_message))
        registry = WorkerStateRegistry(driver, HostManager(FixedHosts({"a": 1, "b": 1})))
        registry.reset(2)
        done = in_thread(lambda: registry.record_success("a", 0))
        registry.record_ready("b", 0)
        done.result(SOON)
        assert ended == [None]

    def test_is_an_end_of_its_own(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.exit("a", 0)
            ours.ready("b")
            assert ours.end() is SessionEnd.EARLY_EXIT

    def test_all_ranks_ending_with_0_is_a_success(self) -> None:
        with bench() as ours:
            for host in ours.begin("a", "b"):
                ours.exit(host, 0)
            assert ours.end() is SessionEnd.SUCCEEDED

    @pytest.mark.parametrize("codes", [(1, 1), (1, 0), (-9, -15)])
    def test_none_left_is_no_success(self, codes: tuple[int, int]) -> None:
        with bench() as ours:
            for host, code in zip(ours.begin("a", "b"), codes, strict=True):
                ours.exit(host, code)
            assert ours.end() is SessionEnd.ALL_FAILED


class TestUnassignedRanks:
    """A rank that dies while the run waits below its minimum."""

    def test_stock_counts_it_in_the_next_barrier(self) -> None:
        resumed: list[None] = []
        driver = SimpleNamespace(finished=lambda: False, resume=lambda: resumed.append(None))
        registry = WorkerStateRegistry(driver, HostManager(FixedHosts({"a": 1, "c": 1})))
        registry.reset(2)  # a world of a and c; b, of the world before, dies only now
        dead = in_thread(lambda: registry.record_failure("b", 0))
        registry.record_ready("a", 0)  # returns: the barrier is taken for full, and c has not come
        dead.result(SOON)
        assert len(resumed) == 1

    def test_is_not_counted(self) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b")
            ours.push("a")
            answers = [ours.ready("a"), ours.ready("b")]
            ours.waiting.get(timeout=SOON)
            ours.exit("b", 1)  # while everybody waits for hosts
            ours.push("a", "c")
            assert ours.next_world() == ["a", "c"]
            assert [answer.result(SOON).rank for answer in answers] == [0, -1]
            registry = ours.driver._worker_registry
            assert registry.record_failure("b", 0) == registry.last_rendezvous()  # does not wait
            assert not registry.get_recorded_slots()
            ours.ready("a")
            assert ours.worlds.empty()
            ours.ready("c")
            assert ours.next_world() == ["a", "c"]

    def test_that_dies_at_the_barrier_has_failed_and_is_not_ready_as_well(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.ready("a")
            ours.exit("a", -9)
            registry = ours.driver._worker_registry
            wait_until(lambda: registry.count("FAILURE") == 1)
            assert registry.count("READY") == 0
            ours.exit("b", 1)
            assert ours.end() is SessionEnd.ALL_FAILED

    def test_that_outlives_its_lost_worker_does_not_come_to_the_barrier(self) -> None:
        with bench() as ours:
            ours.begin("a", "b", "c")
            ours.exit("c", -9)  # says the launcher, for its worker is gone; the rank itself has a millisecond left
            wait_until(lambda: ours.driver._worker_registry.count("FAILURE") == 1)
            late = in_thread(lambda: ours.driver.record_ready("c", 0))
            with pytest.raises(RuntimeError, match="known as FAILURE"):
                late.result(SOON)
            answers = [ours.ready("a")]
            assert ours.worlds.empty()
            answers.append(ours.ready("b"))
            assert ours.next_world() == ["a", "b"]
            assert [answer.result(SOON).rank for answer in answers] == [0, 1]

    def test_that_ends_with_0_at_the_barrier_does_not_come_there_twice(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.ready("a")
            ours.exit("a", 0)
            wait_until(lambda: ours.driver._worker_registry.count("FAILURE") == 1)
            assert ours.worlds.empty()
            answer = ours.ready("b")
            assert ours.next_world() == ["b"]
            assert answer.result(SOON).rank == 0


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

    def test_has_a_timeout_and_holds_up_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(our_rendezvous, "NOTIFY_TIMEOUT", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent, bench(minimum=2) as ours:
            ours.begin("a", "b")
            ours.driver.register_worker_server("a", 0, {"lo": [silent.getsockname()]}, b"key")
            ours.push("a", "c")
            connection, _ = silent.accept()  # it calls, and waits for an answer that never comes
            with connection:
                answers = [ours.ready("a"), ours.ready("b")]
                assert ours.next_world() == ["a", "c"]
                assert [answer.result(SOON).rank for answer in answers] == [0, -1]
                ours.push("a", "d")
                again, _ = silent.accept()
                again.close()

    def test_goes_on_when_nobody_listens_any_more(self, rank: Listener) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = closed.getsockname()
        with bench() as ours:
            ours.begin("a", "b")
            ours.driver.register_worker_server("a", 0, {"lo": [address]}, b"key")
            ours.push("a")
            ours.driver.register_worker_server("a", 0, rank.addresses, rank.key)
            assert rank.hear()[1] == HostUpdateResult.mixed


class TestOrder:
    """Hosts that are found together."""

    NAMES = tuple(f"worker-{index}.0.0" for index in range(40))

    def test_stock_orders_them_by_their_hash(self) -> None:
        manager = HostManager(FixedHosts(dict.fromkeys(self.NAMES, 1)))
        manager.update_available_hosts()
        assert manager.current_hosts.host_assignment_order != list(self.NAMES)

    def test_are_ordered_as_listed_after_those_that_were_there(self) -> None:
        hosts = PushedHosts()
        manager = OrderedHostManager(hosts)
        for listed, order in [
            (self.NAMES[:20], self.NAMES[:20]),
            (self.NAMES[::-1], (*self.NAMES[:20], *self.NAMES[:19:-1])),
            (self.NAMES[5:10], self.NAMES[5:10]),
            ((*self.NAMES[30:], *self.NAMES[5:10]), (*self.NAMES[5:10], *self.NAMES[30:])),
        ]:
            hosts.replace(listed)
            manager.update_available_hosts()
            assert manager.current_hosts.host_assignment_order == list(order)

    def test_ranks_are_numbered_so(self) -> None:
        with bench(minimum=3) as ours:
            assert ours.begin("z", "y", "x") == ["x", "y", "z"]
            for host in "zyx":
                assert ours.driver.get_slot_info(host, 0).rank == "zyx".index(host)


class TestLife:
    def test_survivors_go_on_without_the_one_that_failed(self) -> None:
        with bench() as ours:
            ours.begin("a", "b", "c")
            ours.exit("b", -9)
            answers = [ours.ready("a"), ours.ready("c")]
            assert ours.next_world() == ["a", "c"]
            assert [answer.result(SOON).rank for answer in answers] == [0, 1]

    def test_waits_at_the_barrier_for_enough_hosts(self) -> None:
        with bench(minimum=2) as ours:
            ours.begin("a", "b")
            ours.exit("b", -9)
            answer = ours.ready("a")
            ours.waiting.get(timeout=SOON)
            ours.push("a", "c")
            assert ours.next_world() == ["a", "c"]
            assert answer.result(SOON).size == 2

    def test_ends_when_nobody_is_left_who_holds_the_state(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.push("c", "d")
            for host in "ab":
                ours.ready(host)
            assert ours.end() is SessionEnd.NO_SURVIVOR

    def test_the_first_end_counts(self) -> None:
        with bench() as ours:
            ours.begin("a")
            ours.exit("a", 0)
            assert ours.end() is SessionEnd.SUCCEEDED
            ours.driver.end(SessionEnd.STOPPED)
            assert ours.ends.empty()

    @pytest.mark.parametrize("how", ["while ranks train", "at the barrier", "waiting for hosts", "before it started"])
    def test_an_end_leaves_no_thread_and_no_port(self, how: str) -> None:
        with bench(minimum=2) as ours:  # which looks for threads
            if how != "before it started":
                ours.begin("a", "b")
            if how == "waiting for hosts":
                ours.push("a")
            if how in ("at the barrier", "waiting for hosts"):
                ours.ready("a")
            if how == "waiting for hosts":
                ours.ready("b")
                ours.waiting.get(timeout=SOON)
            ours.driver.end(SessionEnd.STOPPED)
            assert ours.end() is SessionEnd.STOPPED
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", ours.port))

    def test_an_end_while_it_waits_for_its_first_hosts(self) -> None:
        with bench(minimum=2) as ours:
            ours.push("a")
            start = in_thread(lambda: ours.driver.start(2, ours._create_worker))
            ours.driver.end(SessionEnd.STOPPED)
            with pytest.raises(RuntimeError, match="shutdown"):
                start.result(SOON)
