"""What a pool's keeper has its hosts and launchers told."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.pool.ledger import KILLED, RETURN, SHORT_LIFE, Ledger
from elastic_runtime.pool.messages import (
    AgentEnded,
    Busy,
    EndHost,
    ForkAgent,
    Granted,
    HostHello,
    KillAgent,
    Launch,
    RunHello,
    Wishes,
)
from elastic_runtime.pool.settings import PoolSettings

LAUNCH = Launch((), "/notices", "/", {}, {})


class Bench:
    """A pool of four workers, the messages that its keeper sends, and its clock."""

    def __init__(self, *, on_demand: bool = False, standing: int = 0, **settings: Any) -> None:
        made = PoolSettings("team-a", **{"maximum": 4, "idle": 60.0, **settings})
        self.ledger = Ledger(made, on_demand=on_demand, standing=standing)
        self.now = 100.0
        self.granted: dict[str, Granted] = {}
        self.forked: dict[tuple[str, str], int] = {}
        self.killed: list[tuple[str, str]] = []
        self.ends = False

    def host(self, *busy: Busy, capacity: int = 8) -> None:
        self.ledger.host_came(HostHello("here", capacity, busy), self.now)

    def pod(self, name: str, *busy: Busy) -> None:
        self.deliver(self.ledger.host_came(HostHello(name, 1, busy), self.now))

    def run(self, uid: str, wanted: int, *, priority: int = 1, minimum: int = 1, **hello: Any) -> None:
        wishes = Wishes(minimum, wanted, 4, priority, False)
        fields = {"since": self.now, "has": 0, "next_worker": 0, **hello}
        self.ledger.run_came(RunHello(uid, uid, launch=LAUNCH, wishes=wishes, **fields), self.now)

    def wish(self, wanted: int, **more: tuple[str, ...]) -> None:
        """The run ``only`` wishes for so many."""
        self.deliver(self.ledger.run_wishes("only", Wishes(1, wanted, 4, 1, False, **more), self.now))

    def resize(self, maximum: int) -> None:
        self.ledger.resized(PoolSettings("team-a", maximum=maximum, idle=60.0))
        self.settle()

    def settle(self, trouble: str = "") -> None:
        self.deliver(self.ledger.settle(self.now, trouble))

    def deliver(self, orders: list[tuple[str, Any]]) -> None:
        for target, message in orders:
            match message:
                case Granted():
                    self.granted[target] = message
                case ForkAgent(place, uid, worker):
                    assert worker in self.granted[uid].assigned, "its launcher is told before it dials"
                    self.forked[uid, worker] = place
                case KillAgent(uid, worker):
                    self.killed.append((uid, worker))
                case EndHost():
                    self.ends = True

    def ended(self, uid: str, worker: str, code: int = 0, *, host: str = "here") -> None:
        ended = AgentEnded(self.forked.pop((uid, worker)), uid, worker, code)
        self.deliver(self.ledger.agent_ended(host, ended, self.now))


def test_a_run_gets_workers_and_a_higher_priority_takes_them_as_they_leave() -> None:
    bench = Bench()
    bench.host()
    bench.run("low", 4)
    bench.settle()
    assert bench.granted["low"] == Granted(4, ("worker-0", "worker-1", "worker-2", "worker-3"), "")
    bench.run("high", 3, priority=10)
    bench.settle()
    assert bench.granted["low"].workers == 1
    assert "priority 1 beside high (10)" in bench.granted["low"].reason
    assert bench.granted["high"] == Granted(3, (), ""), "none has left yet"
    bench.ended("low", "worker-3")
    bench.settle()
    assert bench.forked["high", "worker-0"] == 3
    assert bench.granted["low"].assigned == ("worker-0", "worker-1", "worker-2")


def test_a_run_that_cannot_have_its_minimum_waits_with_a_reason() -> None:
    bench = Bench()
    bench.host()
    bench.run("first", 3, minimum=3)
    bench.run("second", 2, minimum=2)
    bench.settle()
    assert bench.granted["second"].workers == 0
    assert bench.granted["second"].reason.startswith("waits for 2 workers of pool team-a")


def test_a_pool_without_a_host_grants_and_forks_once_there_is_one() -> None:
    bench = Bench()
    assert not bench.ledger.wanted
    bench.run("only", 2)
    bench.settle()
    assert bench.ledger.wanted
    assert bench.granted["only"] == Granted(2, (), "")
    bench.host()
    bench.settle()
    assert len(bench.forked) == 2


def test_workers_of_a_launcher_that_was_killed_come_back_and_are_killed_if_they_do_not() -> None:
    bench = Bench()
    bench.host()
    bench.run("lost", 2)
    bench.settle()
    bench.ledger.run_gone("lost", bench.now)
    bench.run("next", 4, minimum=3)
    bench.ended("lost", "worker-0")
    bench.settle()
    assert bench.granted["next"].workers == 3
    assert len(bench.forked) == 4
    bench.now += RETURN + 1
    bench.settle()
    bench.settle()
    assert bench.killed == [("lost", "worker-1")], "once"
    bench.ended("lost", "worker-1", -9)
    bench.settle()
    assert [run.run for run in bench.ledger.status().runs] == ["next"]


def test_a_new_keeper_adopts_agents_and_waits_for_their_launchers() -> None:
    bench = Bench()
    bench.host(Busy(0, "old", "worker-4"), Busy(2, "old", "worker-5"))
    bench.run("new", 4)
    bench.settle()
    assert bench.granted["new"].workers == 2, "the others are somebody's"
    bench.run("old", 2, since=1.0, has=2, next_worker=5)
    bench.settle()
    assert bench.granted["old"] == Granted(2, ("worker-4", "worker-5"), "")
    bench.ledger.agent_ended("here", AgentEnded(0, "old", "worker-4", 0), bench.now)
    bench.settle()
    assert ("old", "worker-6") in bench.forked, "no name is used twice"


def test_agents_whose_launcher_never_dials_are_killed() -> None:
    bench = Bench()
    bench.host(Busy(0, "old", "worker-4"))
    bench.now += RETURN + 1
    bench.settle()
    assert bench.killed == [("old", "worker-4")]


def test_a_launcher_that_dials_again_keeps_its_workers() -> None:
    bench = Bench()
    bench.host()
    bench.run("only", 2)
    bench.settle()
    bench.ledger.run_gone("only", bench.now)
    bench.settle()
    bench.run("only", 2, has=2, next_worker=2)
    bench.settle()
    assert bench.granted["only"] == Granted(2, ("worker-0", "worker-1"), "")
    assert len(bench.forked) == 2


def test_an_agent_that_fails_at_once_holds_the_next_one_back() -> None:
    bench = Bench()
    bench.host()
    bench.run("only", 1)
    bench.settle()
    bench.ended("only", "worker-0", 1)
    bench.settle()
    assert not bench.forked
    bench.now += 2
    bench.settle()
    assert set(bench.forked) == {("only", "worker-1")}
    bench.now += SHORT_LIFE
    bench.ended("only", "worker-1", 1)
    bench.settle()
    assert set(bench.forked) == {("only", "worker-2")}, "that one had lived"


def test_what_a_launcher_ends_is_killed_once() -> None:
    bench = Bench()
    bench.host()
    bench.run("only", 2)
    bench.settle()
    wishes = Wishes(1, 2, 4, 1, False, ("worker-1", "worker-9"))
    bench.deliver(bench.ledger.run_wishes("only", wishes, bench.now))
    bench.deliver(bench.ledger.run_wishes("only", wishes, bench.now))
    assert bench.killed == [("only", "worker-1")]


def test_hosts_end_once_nobody_has_wished_for_a_worker_for_the_idle_time() -> None:
    bench = Bench()
    bench.host()
    bench.run("only", 1)
    bench.settle()
    bench.ledger.run_gone("only", bench.now)
    bench.ended("only", "worker-0")
    bench.settle()
    bench.now += 59
    bench.settle()
    assert not bench.ends
    bench.now += 2
    bench.settle()
    assert bench.ends
    assert not bench.ledger.wanted


def test_a_pool_with_a_minimum_keeps_its_host() -> None:
    bench = Bench(minimum=1)
    assert bench.ledger.wanted
    bench.host()
    bench.now += 1000
    bench.settle()
    assert not bench.ends


def test_a_larger_pool_has_more_workers_at_once() -> None:
    bench = Bench(maximum=1)
    bench.host()
    bench.run("only", 3)
    bench.settle()
    assert "which has 1 at most" in bench.granted["only"].reason
    bench.resize(4)
    assert bench.granted["only"] == Granted(3, ("worker-0", "worker-1", "worker-2"), "")
    assert (bench.ledger.status().warm, bench.ledger.status().free) == (4, 1)


def test_a_pool_that_is_larger_than_its_machine_says_what_there_is() -> None:
    bench = Bench()
    bench.host(capacity=2)
    bench.run("first", 4)
    bench.run("second", 1)
    bench.settle()
    assert bench.granted["first"].workers + bench.granted["second"].workers == 2
    bench.run("third", 3, minimum=3)
    bench.settle()
    assert bench.granted["third"].reason == "it needs 3 workers at least, and pool team-a has 2 at most"


def test_a_smaller_pool_takes_what_is_more_than_the_minimum_of_those_that_train() -> None:
    bench = Bench()
    bench.host()
    bench.run("first", 2, minimum=2)
    bench.run("second", 2)
    bench.settle()
    bench.resize(1)
    assert bench.granted["first"] == Granted(2, ("worker-0", "worker-1"), ""), "no run is stopped"
    assert bench.granted["second"].workers == 1
    bench.ended("second", "worker-1")
    bench.settle()
    assert (bench.ledger.status().warm, bench.ledger.status().free) == (3, 0), "its place is gone"
    bench.now += SHORT_LIFE
    bench.ended("first", "worker-0", -9)
    bench.settle()
    assert ("first", "worker-2") in bench.forked, "one that is lost is replaced"
    bench.run("third", 1)
    bench.settle()
    assert bench.granted["third"].reason.startswith("waits for 1 worker of pool team-a")


def test_a_host_that_comes_back_to_a_smaller_pool_keeps_its_agents() -> None:
    bench = Bench(maximum=1)
    bench.host(Busy(0, "old", "worker-0"), Busy(3, "old", "worker-1"))
    bench.run("old", 2, minimum=2, has=2, next_worker=2)
    bench.settle()
    assert bench.granted["old"] == Granted(2, ("worker-0", "worker-1"), "")
    assert bench.ledger.status().warm == 2


def test_what_cannot_be_is_refused() -> None:
    bench = Bench()
    bench.host()
    bench.run("only", 1)
    with pytest.raises(InvalidDocument, match="second launcher"):
        bench.run("only", 1)
    with pytest.raises(InvalidDocument, match="second host"):
        bench.host()
    for wishes in (Wishes(0, 1, 1, 1, False), Wishes(3, 3, 2, 1, False), Wishes(2, 1, 3, 1, False)):
        with pytest.raises(InvalidDocument):
            bench.ledger.run_wishes("only", wishes, bench.now)
    other = Bench()
    twice = (Busy(1, "x", "worker-0"), Busy(1, "x", "worker-1"))
    for hello in (HostHello("a", 1001), HostHello("a", 4, (Busy(7, "x", "worker-0"),)), HostHello("a", 4, twice)):
        with pytest.raises(InvalidDocument):
            other.ledger.host_came(hello, 0.0)


class TestPods:
    """Hosts that come as they are wanted, one worker each."""

    def test_as_many_are_wanted_as_runs_have_been_given_and_each_worker_has_the_name_of_its_pod(self) -> None:
        bench = Bench(on_demand=True, minimum=1)
        assert bench.ledger.wanted == 1
        bench.run("only", 3)
        bench.settle()
        assert bench.ledger.wanted == 3
        assert bench.granted["only"] == Granted(3, (), ""), "it is told before there is any"
        bench.pod("pod-x")
        bench.settle()
        assert set(bench.forked) == {("only", "pod-x")}
        assert bench.ledger.busy_hosts == {"pod-x"}

    def test_two_runs_have_no_more_than_the_pool_though_not_one_pod_has_come(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("low", 4)
        bench.run("high", 3, priority=10)
        bench.settle()
        assert (bench.granted["high"].workers, bench.granted["low"].workers) == (3, 1)
        assert bench.ledger.wanted == 4

    def test_it_stays_as_large_as_it_was_needed_within_the_idle_time(self) -> None:
        bench = Bench(on_demand=True, standing=2)
        bench.settle()
        assert bench.ledger.wanted == 2, "of the keeper before"
        bench.run("only", 3)
        bench.settle()
        bench.now += 50
        bench.settle()
        bench.ledger.run_wishes("only", Wishes(1, 1, 4, 1, False), bench.now)
        bench.settle()
        bench.now += 59
        bench.settle()
        assert bench.ledger.wanted == 3
        bench.now += 2
        bench.settle()
        assert bench.ledger.wanted == 1
        assert not bench.ends, "the place takes its pods itself"

    def test_why_pods_do_not_come_is_told_to_those_that_wait_for_them(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("first", 2)
        bench.run("second", 1)
        bench.pod("pod-x")
        bench.pod("pod-y")
        bench.settle("no room")
        assert (bench.granted["first"].trouble, bench.granted["second"].trouble) == ("", "no room")
        assert bench.ledger.status().trouble == "no room"
        bench.pod("pod-z")
        bench.settle("no room")
        assert not bench.granted["second"].trouble, "it has all"

    def test_a_host_that_leaves_is_replaced_before_its_agent_has_ended_and_has_no_other_one(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 1)
        bench.pod("old")
        bench.pod("new")
        bench.settle()
        assert set(bench.forked) == {("only", "old")}
        assert bench.ledger.host_leaves("old") == []
        bench.settle()
        assert bench.granted["only"].assigned == ("old", "new")
        bench.ended("only", "old", host="old")
        assert bench.granted["only"].assigned == ("new",), "at once"
        bench.run("next", 1)
        bench.settle()
        assert bench.granted["next"] == Granted(1, (), ""), "the one that leaves has no place"

    def test_a_full_pool_has_another_one_before_a_host_has_left(self) -> None:
        bench = Bench(on_demand=True, maximum=1)
        bench.run("only", 1)
        bench.pod("old")
        bench.settle()
        bench.ledger.host_leaves("old")
        bench.pod("new")
        bench.settle()
        assert bench.granted["only"].assigned == ("old", "new")

    def test_an_agent_that_is_to_end_is_killed_whoever_comes_back_first(self) -> None:
        bench = Bench(on_demand=True)
        busy, wishes = Busy(0, "only", "pod-x"), Wishes(1, 1, 4, 1, False, ("pod-x",))
        bench.deliver(bench.ledger.run_came(RunHello("only", "only", bench.now, 1, 0, LAUNCH, wishes), bench.now))
        assert not bench.killed
        bench.pod("pod-x", busy)
        assert bench.killed == [("only", "pod-x")]
        other = Bench(on_demand=True)
        other.pod("pod-x", busy)
        other.deliver(other.ledger.run_came(RunHello("only", "only", other.now, 1, 0, LAUNCH, wishes), other.now))
        assert other.killed == [("only", "pod-x")]

    def test_the_next_agent_in_a_pod_is_not_killed_for_the_one_before_whoever_comes(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 2)
        bench.pod("pod-x")
        bench.settle()
        bench.wish(2, ends=("pod-x",))
        bench.ended("only", "pod-x", -9, host="pod-x")
        bench.settle()
        assert set(bench.forked) == {("only", "pod-x")}, "again"
        bench.pod("pod-y")
        assert bench.killed == [("only", "pod-x")], "once"

    def test_a_pod_whose_machine_will_be_taken_has_no_other_agent_and_is_given_up(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 1)
        bench.pod("old")
        bench.pod("new")
        bench.settle()
        bench.wish(1, taken=("old",))
        bench.ended("only", "old", host="old")
        bench.settle()
        assert bench.granted["only"].assigned == ("new",)
        assert bench.ledger.given_up(bench.now) == ({"old"}, set())
        bench.ledger.host_gone("old")
        assert bench.ledger.given_up(bench.now) == (set(), set())

    def test_agents_of_a_launcher_before_are_killed_whoever_comes_back_first(self) -> None:
        wishes = Wishes(1, 2, 4, 1, False)
        hello = RunHello("only", "only", 100.0, 2, 0, LAUNCH, wishes, term=2, assigned=("pod-x",))
        for first in (True, False):
            bench = Bench(on_demand=True)
            if first:
                bench.deliver(bench.ledger.run_came(hello, bench.now))
            for name in ("pod-x", "pod-y"):
                bench.pod(name, Busy(0, "only", name))
            if not first:
                bench.deliver(bench.ledger.run_came(hello, bench.now))
            assert bench.killed == [("only", "pod-y")]

    def test_a_launcher_takes_no_pod_that_it_never_had(self) -> None:
        bench = Bench(on_demand=True, minimum=2)
        bench.run("only", 1)
        for name in ("first", "idle"):
            bench.pod(name)
        bench.settle()
        bench.wish(1, taken=("idle",))
        assert bench.ledger.given_up(bench.now) == (set(), set())

    def test_a_pod_that_will_be_taken_is_given_up_though_its_agent_ended_first_but_not_with_anothers(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("other", 1)
        bench.run("only", 1)
        bench.pod("first")
        bench.pod("second")
        bench.settle()
        [others] = bench.granted["other"].assigned
        [own] = bench.granted["only"].assigned
        bench.ended("only", own, host=own)
        bench.wish(1, taken=(own, others))
        assert bench.ledger.given_up(bench.now) == ({own}, set())

    def test_a_pod_whose_agent_does_not_end_is_given_up_and_replaced(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 1)
        bench.pod("stuck")
        bench.settle()
        bench.wish(1, ends=("stuck",))
        bench.now += KILLED + 1
        bench.settle()
        assert bench.ledger.given_up(bench.now) == (set(), {"stuck"})
        bench.pod("new")
        bench.settle()
        assert bench.granted["only"].assigned == ("stuck", "new")

    def test_a_smaller_pool_has_no_pods_beyond_its_size_that_nobody_needs(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 4)
        for name in "abcd":
            bench.pod(name)
        bench.settle()
        bench.resize(1)
        assert bench.ledger.wanted == 4, "which train"
        for name in "bcd":
            bench.ended("only", name, host=name)
        bench.settle()
        assert bench.ledger.wanted == 1

    def test_a_launcher_that_replaces_another_one_has_its_place_among_the_runs(self) -> None:
        bench = Bench(on_demand=True, maximum=1)
        bench.run("first", 1)
        bench.now += 10
        bench.run("second", 1)
        bench.ledger.run_gone("first", bench.now)
        bench.now += 10
        bench.run("first", 1)
        bench.settle()
        assert (bench.granted["first"].workers, bench.granted["second"].workers) == (1, 0)

    def test_the_end_of_an_agent_is_told_before_its_pod_comes_again(self) -> None:
        bench = Bench(on_demand=True)
        bench.run("only", 1)
        bench.pod("pod-x")
        bench.settle()
        told: list[Granted] = []
        ended = AgentEnded(bench.forked.pop(("only", "pod-x")), "only", "pod-x", 0)
        bench.now += SHORT_LIFE
        for orders in (bench.ledger.agent_ended("pod-x", ended, bench.now), bench.ledger.settle(bench.now)):
            told += [message for _, message in orders if isinstance(message, Granted)]
        assert [each.assigned for each in told] == [(), ("pod-x",)]

    def test_a_pod_with_another_worker_than_its_own_is_refused(self) -> None:
        bench = Bench(on_demand=True)
        with pytest.raises(InvalidDocument, match="other workers"):
            bench.pod("pod-x", Busy(0, "old", "pod-y"))
        with pytest.raises(InvalidDocument, match="other workers"):
            bench.host(capacity=2)
        bench.pod("pod-x", Busy(0, "old", "pod-x"))
        bench.run("old", 1, has=1)
        bench.settle()
        assert bench.granted["old"] == Granted(1, ("pod-x",), "")
