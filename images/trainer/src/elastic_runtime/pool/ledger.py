"""What a keeper has of runs, hosts and their workers, and what follows. No I/O, and no clock of its own.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import islice

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.pool.allotment import Wish, allot, explain
from elastic_runtime.pool.messages import (
    AgentEnded,
    EndHost,
    ForkAgent,
    Granted,
    HostHello,
    KillAgent,
    Launch,
    RunHello,
    ToHost,
    Wishes,
    check_environment,
)
from elastic_runtime.pool.settings import MOST_WORKERS, PoolSettings
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_runtime.retry import Retry, RetryPolicy

log = logging.getLogger(__name__)

RETURN = 30.0
"""Seconds that a launcher has to dial again, before its agents are killed: those of one that is dead end by themselves,
and those of one that lives train on without a keeper."""
KILLED = 15.0
"""Seconds after which an agent that was killed, and of whose end its host has not told, is given up with its host."""
SHORT_LIFE = 5.0
"""An agent that failed in less seconds holds the next one of its run back."""
_BACKOFF = RetryPolicy(first=1.0, longest=60.0)
MOST_RUNS = 1000
"""Runs in a pool, waiting ones included."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One place for an agent."""

    host: str
    place: int
    uid: str = ""
    """Of the run that has it; empty: it is free."""
    name: str = ""
    """In that run."""
    born: float = 0.0
    killed: float | None = None
    """When it was told to be killed."""
    before: str = ""
    """Uid of the run that had it before it was free."""


@dataclass(slots=True, eq=False)
class _Run:
    name: str
    since: float
    launch: Launch
    wishes: Wishes
    has: int
    next_worker: int
    term: int = 0
    known: set[str] = field(default_factory=set)
    """Names of workers that its launcher was ever told of: agents of others dial an earlier launcher."""
    told: Granted | None = None
    lost: float | None = None
    """When its launcher's connection ended; None: it is here."""
    hold_until: float = 0.0
    retry: Retry = field(default_factory=lambda: Retry(_BACKOFF))

    def wish(self, uid: str, here: int) -> Wish:
        """What it would have. A run whose launcher is gone keeps what it has, until that has ended."""
        wishes = self.wishes
        sizes = (wishes.minimum, wishes.wanted, wishes.maximum) if self.lost is None else (here, here, here)
        return Wish(uid, *sizes, wishes.priority, wishes.greedy, self.since, self.has, self.name)


Orders = list[tuple[str, Granted | ToHost]]
"""Messages to runs, by uid, and to hosts, by name."""


class Needs:
    """The most workers that were needed within a time.

    Args:
        idle: seconds of that time.
    """

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self._found: list[tuple[int, float]] = []
        """Numbers, falling, each with the time at which it was last needed."""

    def note(self, workers: int, now: float) -> int:
        """Return the most that were needed, with what is needed now."""
        larger = [each for each in self._found if each[0] > workers and now - each[1] < self.idle]
        self._found = [*larger, (workers, now)]
        return self._found[0][0]


class Ledger:
    """What a keeper knows.

    Args:
        settings: of the pool.
        on_demand: whether hosts come as workers are needed, each with one that has its name. If not, one has all.
        standing: workers that there were before this keeper.
    """

    def __init__(self, settings: PoolSettings, *, on_demand: bool = False, standing: int = 0) -> None:
        self._settings, self._on_demand, self._standing = settings, on_demand, standing
        self._runs: dict[str, _Run] = {}
        self._hosts: dict[str, int] = {}
        """Those that are connected, with the most workers of each."""
        self._workers: list[_Worker] = []
        self._unknown: dict[str, float] = {}
        """Runs that have agents and no launcher that this keeper has met, and since when."""
        self._leaving: set[str] = set()
        """Hosts that will end."""
        self._taken: set[str] = set()
        """Those of them whose machines will be taken, as a launcher says."""
        self._needs = Needs(settings.idle)
        self._needed: int | None = None
        """Workers, now or within the idle time; None: nothing was divided yet."""
        self._needed_now = 0
        self._trouble = ""
        self._reasons: dict[str, str] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of those that are connected."""
        return tuple(self._hosts)

    @property
    def wanted(self) -> int:
        """Workers that there are to be: what runs need, or have needed within the idle time, if they still may."""
        most = max(self._settings.maximum, self._needed_now)
        return max(self._settings.minimum, min(self._needed or 0, most))

    @property
    def busy_hosts(self) -> frozenset[str]:
        """Names of the hosts that have an agent."""
        return frozenset(each.host for each in self._workers if each.uid)

    def given_up(self, now: float) -> tuple[frozenset[str], frozenset[str]]:
        """Return names of hosts on demand that will be taken, and of those that do not end their agent."""
        stuck = {each.host for each in self._workers if each.killed is not None and now - each.killed > KILLED}
        return (frozenset(self._taken), frozenset(stuck)) if self._on_demand else (frozenset(), frozenset())

    # What happens.

    def resized(self, settings: PoolSettings) -> None:
        """The pool has another size."""
        self._settings, self._needs.idle = settings, settings.idle

    def supersedes(self, hello: RunHello) -> bool:
        """Whether a launcher of that run is here that another has replaced, and that may not know it."""
        before = self._runs.get(hello.uid)
        return before is not None and before.lost is None and hello.term > before.term

    def run_came(self, hello: RunHello, now: float) -> Orders:
        """A launcher has connected. Raises InvalidDocument if it cannot be."""
        check(hello.wishes)
        check_environment(hello.launch.environment)
        before = self._runs.get(hello.uid)
        if before is not None and (before.lost is None or hello.term < before.term):
            raise InvalidDocument(f"a second launcher of run {hello.run}")
        if before is None and len(self._runs) >= MOST_RUNS:
            raise InvalidDocument(f"there are {MOST_RUNS} runs in the pool")
        used = [int(number) for each in self._of(hello.uid) if (number := each.name.rpartition("-")[2]).isdecimal()]
        count = max([hello.next_worker, before.next_worker if before else 0, *(number + 1 for number in used)])
        has = before.has if before else hello.has
        since = min(hello.since, before.since) if before else hello.since
        known = set(hello.assigned)
        self._runs[hello.uid] = _Run(hello.run, since, hello.launch, hello.wishes, has, count, hello.term, known)
        self._unknown.pop(hello.uid, None)
        return self._ends(hello.uid, hello.wishes, now)

    def run_wishes(self, uid: str, wishes: Wishes, now: float) -> Orders:
        """A launcher wishes for something else. Raises InvalidDocument if it cannot be."""
        check(wishes)
        self._runs[uid].wishes = wishes
        return self._ends(uid, wishes, now)

    def _ends(self, uid: str, wishes: Wishes, now: float) -> Orders:
        if self._on_demand:  # Their agents may have ended by now.
            own = [each for each in self._workers if (each.uid or each.before) == uid]
            taken = {each.host for each in own if each.host in wishes.taken}
            self._taken |= taken
            for host in taken:
                self.host_leaves(host)
        known = self._runs[uid].known - set(wishes.ends)
        return [order for each in self._of(uid) if each.name not in known for order in self._kill(each, now)]

    def run_gone(self, uid: str, now: float) -> None:
        """A launcher's connection has ended."""
        self._runs[uid].lost = now

    def host_came(self, hello: HostHello, now: float) -> Orders:
        """A host has connected. Raises InvalidDocument if it cannot be."""
        if hello.host in self._hosts:
            raise InvalidDocument(f"a second host {hello.host}")
        if not 1 <= hello.capacity <= MOST_WORKERS:
            raise InvalidDocument(f"host {hello.host} has {hello.capacity} workers")
        if wrong := [each.place for each in hello.busy if not 0 <= each.place < hello.capacity]:
            raise InvalidDocument(f"host {hello.host} has no place {wrong[0]}")
        if len({each.place for each in hello.busy}) < len(hello.busy):
            raise InvalidDocument(f"host {hello.host} has two workers in one place")
        if self._on_demand and (hello.capacity > 1 or any(each.worker != hello.host for each in hello.busy)):
            raise InvalidDocument(f"host {hello.host} has other workers than one of its name")
        self._hosts[hello.host] = hello.capacity
        for busy in hello.busy:
            self._workers.append(_Worker(hello.host, busy.place, busy.uid, busy.worker, now))
            if busy.uid not in self._runs:
                self._unknown.setdefault(busy.uid, now)
        return [order for uid, run in self._runs.items() for order in self._ends(uid, run.wishes, now)]

    def host_gone(self, host: str) -> None:
        """A host's connection has ended. If it lives, it dials again, and tells what agents it has."""
        del self._hosts[host]
        self._leaving.discard(host)
        self._taken.discard(host)
        self._workers = [each for each in self._workers if each.host != host]

    def host_leaves(self, host: str) -> Orders:
        """A host ends with the agent that it has."""
        self._leaving.add(host)
        self._workers = [each for each in self._workers if each.host != host or each.uid]
        return []

    def agent_ended(self, host: str, message: AgentEnded, now: float) -> Orders:
        """A host says that an agent is no more. Returns what its launcher is told before its name can come again."""
        orders: Orders = []
        for each in self._workers:
            if (each.host, each.place, each.uid, each.name) == (host, message.place, message.uid, message.worker):
                run = self._runs.get(each.uid)
                if run:  # Or the next agent of that name, where hosts come on demand, would be ended for this one.
                    run.wishes = run.wishes.without(each.name)
                if run and message.code and each.killed is None and now - each.born < SHORT_LIFE:
                    run.hold_until = now + run.retry.failed()
                    log.info("%s of %s ended with %d after %.1f s", each.name, run.name, message.code, now - each.born)
                elif run:
                    run.retry.succeeded()
                uid, each.uid, each.name, each.killed = each.uid, "", "", None
                each.before = uid
                if run and run.lost is None:
                    orders += self._tell(uid, run)
        if host in self._leaving:
            self.host_leaves(host)
        return orders

    # What follows.

    def settle(self, now: float, trouble: str = "") -> Orders:
        """Divide the workers anew. Returns what is to be told to whom, in that order.

        Args:
            now: seconds.
            trouble: why hosts do not come, for people; empty: nobody knows of a reason.
        """
        self._trouble = trouble
        orders = self._end_lost(now)
        self._leaving |= self.given_up(now)[1]
        wishes = [run.wish(uid, len(self._of(uid))) for uid, run in self._runs.items()]
        others = sum(each.uid in self._unknown for each in self._workers)
        most = self._settings.maximum
        if not self._on_demand:
            most = min(most, sum(self._hosts.values()) or MOST_WORKERS)
        given = allot(wishes, most - others)
        self._fit(max(most, sum(given.values()) + others))
        for wish in wishes:
            uid, run = wish.run, self._runs[wish.run]
            run.has = given.get(uid, 0)
            self._reasons[uid] = explain(wish, wishes, given, most, self._settings.name)
        # Those that have least of what they were given come first: at a start, each run soon has some.
        for uid, run in sorted(self._runs.items(), key=lambda each: len(self._of(each[0]))):
            if run.lost is None:
                orders += self._assign(uid, run, now)
        self._need(sum(given.values()) + others, now)
        if not self.wanted and not self._on_demand:
            orders += [(host, EndHost()) for host in self.hosts]
        return orders

    def _need(self, workers: int, now: float) -> None:
        if self._needed is None:  # What there is has not been idle for longer than this keeper knows.
            self._needs.note(max(self._standing, len(self._workers)), now)
        waits = any(run.wishes.wanted for run in self._runs.values())
        busy = sum(bool(each.uid) for each in self._workers)
        self._needed_now = max(workers, busy, int(waits))
        self._needed = self._needs.note(self._needed_now, now)

    def _fit(self, most: int) -> None:
        """Have so many workers, as far as hosts have places for them. Those that train stay."""
        free = [each for each in reversed(self._workers) if not each.uid]
        for each in free[: max(0, self._staying - most)]:
            self._workers.remove(each)
        for host, capacity in self._hosts.items():
            if host in self._leaving:
                continue
            taken = {each.place for each in self._workers if each.host == host}
            places = islice((each for each in range(capacity) if each not in taken), max(0, most - self._staying))
            self._workers += [_Worker(host, place) for place in places]

    @property
    def _staying(self) -> int:
        """Workers of hosts that do not leave."""
        return sum(each.host not in self._leaving for each in self._workers)

    def _assign(self, uid: str, run: _Run, now: float) -> Orders:
        forks: Orders = []
        free = [each for each in self._workers if not each.uid]
        staying = [each for each in self._of(uid) if each.host not in self._leaving]
        short = run.has - len(staying) if now >= run.hold_until else 0
        for worker in free[: max(0, short)]:
            worker.uid, worker.name, worker.born = uid, worker.host, now
            if not self._on_demand:
                worker.name, run.next_worker = f"worker-{run.next_worker}", run.next_worker + 1
            run.known.add(worker.name)
            forks.append((worker.host, ForkAgent(worker.place, uid, worker.name, run.launch)))
        return [*self._tell(uid, run), *forks]  # The launcher expects an agent before that dials.

    def _tell(self, uid: str, run: _Run) -> Orders:
        here = tuple(each.name for each in self._of(uid))
        trouble = self._trouble if len(here) < run.has else ""
        granted = Granted(run.has, here, self._reasons.get(uid, ""), trouble)
        if granted == run.told:
            return []
        run.told = granted
        return [(uid, granted)]

    def _end_lost(self, now: float) -> Orders:
        orders: Orders = []
        for uid, run in list(self._runs.items()):
            if run.lost is not None and not self._of(uid):
                del self._runs[uid]
                self._reasons.pop(uid, None)
            elif run.lost is not None and now - run.lost > RETURN:
                orders += [order for each in self._of(uid) for order in self._kill(each, now)]
        for uid, since in list(self._unknown.items()):
            if not self._of(uid):
                del self._unknown[uid]
            elif now - since > RETURN:
                orders += [order for each in self._of(uid) for order in self._kill(each, now)]
        return orders

    @staticmethod
    def _kill(worker: _Worker, now: float) -> Orders:
        if worker.killed is not None:
            return []
        worker.killed = now
        return [(worker.host, KillAgent(worker.uid, worker.name))]

    def _of(self, uid: str) -> list[_Worker]:
        return [each for each in self._workers if each.uid == uid]

    def status(self) -> PoolStatus:
        """How the pool stands, for people."""
        runs = [
            PoolRun(
                run.name,
                uid,
                run.wishes.priority,
                run.wishes.greedy,
                *(run.wishes.minimum, run.wishes.wanted, run.wishes.maximum),
                run.has,
                tuple(each.name for each in self._of(uid)),
                "its launcher is gone" if run.lost is not None else self._reasons.get(uid, ""),
            )
            for uid, run in sorted(self._runs.items(), key=lambda each: (-each[1].wishes.priority, each[1].since))
        ]
        free = sum(not each.uid for each in self._workers)
        return PoolStatus(self._settings, len(self._workers), free, tuple(runs), self._trouble)


def check(wishes: Wishes) -> None:
    """Raises InvalidDocument for wishes that no run can have."""
    if not 1 <= wishes.minimum <= wishes.maximum:
        raise InvalidDocument(f"a run cannot wish for {wishes.minimum} to {wishes.maximum} workers")
    if wishes.wanted and not wishes.minimum <= wishes.wanted <= wishes.maximum:
        raise InvalidDocument(f"{wishes.wanted} workers are not {wishes.minimum} to {wishes.maximum}")
