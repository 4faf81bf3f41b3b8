"""The driver's rows of the table in :mod:`elastic_runtime.engines.horovod`, beside stock Horovod where that can be.

What it tells ranks: test_adaptations_notifications.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from horovod.runner.elastic.discovery import FixedHosts, HostManager
from horovod.runner.elastic.registration import WorkerStateRegistry

from elastic_runtime.engines.horovod.driver import OrderedHostManager, PushedHosts, SessionEnd
from tests.unit.runtime.driver_bench import SOON, bench, in_thread, wait_until


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

    def test_waits_until_one_is_listed_who_holds_the_state(self) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.push("c", "d")
            for host in "ab":
                ours.ready(host)
            ours.waiting.get(timeout=SOON)
            ours.push("c", "b")
            assert ours.next_world() == ["b", "c"], "rank 0 is one that holds it"
            assert {ours.started.get(timeout=SOON) for _ in "c"} == {"c"}

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
