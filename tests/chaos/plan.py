"""What is done to one run, and when: all of it follows from a seed, and nothing from the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

MAXIMUM = 4
"""Workers; more would only wait for the processor."""
MOST_FAULTS = 6
LATEST = 5.0
"""Seconds after the first world's begin by which the last fault is due."""
STOP_SECONDS = (0.5, 12.0)
NOTICE_SECONDS = (0.1, 30.0)
BURST = (2, 5)
"""Sizes in one burst, at least and at most."""


class FaultKind(StrEnum):
    """What is done."""

    RESIZE = "resize"
    """Another number of workers is asked for."""
    KILL_RANK = "kill_rank"
    KILL_AGENT = "kill_agent"
    KILL_ALL_RANKS = "kill_all_ranks"
    STOP_RANK = "stop_rank"
    """SIGSTOP, and SIGCONT later."""
    STOP_AGENT = "stop_agent"
    NOTICE = "notice"
    """One worker will be taken."""
    NOTICE_ALL = "notice_all"
    PAUSE = "pause"
    """Of the run; it is resumed later, once it has no worker any more."""
    DELETE_LAUNCHER = "delete_launcher"
    """Of a run in pods: its pod; another one comes."""
    LOSE_LAUNCHER = "lose_launcher"
    """SIGKILL, and all of the run goes with it; then the next try of its task."""

    @property
    def stops(self) -> bool:
        """Whether a process stands still for a while."""
        return self in (FaultKind.STOP_RANK, FaultKind.STOP_AGENT)

    @property
    def kills(self) -> bool:
        """Whether a process ends at once."""
        return self in (FaultKind.KILL_RANK, FaultKind.KILL_AGENT, FaultKind.KILL_ALL_RANKS)

    @property
    def planned(self) -> bool:
        """Whether the run itself is asked for it."""
        return self in (FaultKind.RESIZE, FaultKind.PAUSE)

    @property
    def notices(self) -> bool:
        """Whether workers are told that they will be taken."""
        return self in (FaultKind.NOTICE, FaultKind.NOTICE_ALL)


FAULTS = tuple(
    kind for kind in FaultKind if kind not in (FaultKind.DELETE_LAUNCHER, FaultKind.LOSE_LAUNCHER, FaultKind.PAUSE)
)
"""That are done anywhere, to any engine, and within one run: one without checkpoints cannot be paused."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done to a run."""

    at: float
    """Seconds after the first world's begin."""
    kind: FaultKind
    pick: float = 0.0
    """Which of the workers or ranks that are there then: a place between the first, 0, and behind the last, 1."""
    seconds: float = 0.0
    """How long a process stands still, or a run is paused at least; how far ahead a notice is."""
    size: int = 0
    """Workers asked for."""
    taken: bool = False
    """Noticed workers that are still there at the deadline are killed, as a machine that is taken; else they may end
    by themselves."""
    stored: int = 0
    """It is not done before there is a checkpoint of this step or a later one."""

    def __str__(self) -> str:
        if self.kind is FaultKind.RESIZE:
            return f"{self.kind} {self.size}"
        return f"{self.kind} {self.seconds:.1f} s" if self.seconds else str(self.kind)


@dataclass(frozen=True, slots=True)
class Stand:
    """A rank that keeps the others waiting: ``tests/local/scripts/standing_still.py``."""

    way: str
    step: int
    rank: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: how the run is set up, and its faults in the order of their times."""

    seed: int
    minimum: int = 1
    start: int = 2
    maximum: int = MAXIMUM
    commit_every: int = 1
    """Of the script: steps from one call of ``commit()`` to the next."""
    state_every: int = 1
    """Of the state: calls from one commit to the next."""
    checkpoint_every: float = 0.5
    """Seconds."""
    backoff: float = 0.2
    """Seconds after which a failed slot is used again."""
    agent_silence: float = 10.0
    """Seconds after which an agent that says nothing is lost."""
    faults: tuple[Fault, ...] = ()
    stand: Stand | None = None
    standstill: float | None = None
    """Seconds: ``recovery.standstill``."""
    window: float = 300.0
    """Seconds: ``recovery.window``."""


def plan_of(seed: int, kinds: Sequence[FaultKind] = FAULTS) -> Plan:
    """The round of this seed, with faults of these kinds."""
    # Not for secrets: the same seed has to give the same round.
    random = Random(seed)
    minimum = random.choice((1, 2))
    start = random.randint(2, 3)
    faults = [fault for at in _times(random) for fault in _fault(random, at, minimum, kinds)]
    return Plan(
        seed=seed,
        minimum=minimum,
        start=start,
        commit_every=random.choice((1, 1, 3)),
        checkpoint_every=random.choice((0.2, 1.0)),
        backoff=random.choice((0.05, 0.5)),
        agent_silence=random.choice((3.0, 10.0)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        state_every=random.choice((1, 1, 5)),
    )


def _times(random: Random) -> list[float]:
    """Some far from each other, some close: races need the second kind."""
    times = [random.uniform(0.0, LATEST)]
    for _ in range(random.randint(0, MOST_FAULTS - 1)):
        close = times[-1] + _log_uniform(random, 0.002, 0.5)
        times.append(close if random.random() < 0.5 and close < LATEST else random.uniform(0.0, LATEST))
    return times


def _fault(random: Random, at: float, minimum: int, kinds: Sequence[FaultKind]) -> Iterator[Fault]:
    """One fault, or a burst of sizes."""
    kind, pick = random.choice(kinds), random.random()
    if kind is FaultKind.RESIZE:
        count = random.choice((1, random.randint(*BURST)))
        for _ in range(count):
            yield Fault(min(at, LATEST), kind, size=random.randint(minimum, MAXIMUM))
            at += _log_uniform(random, 0.01, 0.5)
    elif kind.stops:
        yield Fault(at, kind, pick, seconds=random.uniform(*STOP_SECONDS))
    elif not kind.notices:
        yield Fault(at, kind, pick)
    else:
        yield Fault(at, kind, pick, seconds=_log_uniform(random, *NOTICE_SECONDS), taken=random.random() < 0.5)


def _log_uniform(random: Random, least: float, most: float) -> float:
    """Each order of magnitude as often as the others."""
    return float(least * (most / least) ** random.random())
