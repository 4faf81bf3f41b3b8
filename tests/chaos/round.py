"""One round: a run from its start to its end, with what is done to it meanwhile, and what became of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.run.status import Phase, Status, WorkerState
from tests.chaos.faults import Injector
from tests.chaos.jobs import Job
from tests.chaos.judge import Applied, Digests, Expected, Look, Outcome, Pause, Try, explanations, judge, pauses
from tests.chaos.places import RoundRun
from tests.chaos.plan import Fault, Plan
from tests.paced import LOOK, sizes_of

KEPT_PAUSES = 5
_ABLE = (WorkerState.READY, WorkerState.TRAINING)


@dataclass(frozen=True, slots=True)
class Round:
    """What was planned and what became of it: everything that is kept of a round."""

    engine: str
    plan: Plan
    outcome: Outcome
    applied: tuple[Applied, ...] = ()
    missed: tuple[Fault, ...] = ()
    """Those that found nobody to hit."""
    seconds: float = 0.0
    worlds: tuple[int, ...] = ()
    """Their sizes, of all launchers."""
    aborted: int = 0
    """Ranks that ended by SIGABRT: Gloo takes survivors of a killed one along."""
    digested: int = 0
    """Digests that were compared; of them the outcome keeps those that are apart."""


@dataclass
class _Watch:
    """What a round sees of its run."""

    run: RoundRun
    looks: list[Look] = field(default_factory=list)
    _seen: object = None
    _status: Status | None = None

    def status(self, now: float) -> Status | None:
        """As written last; noted, where it is another one."""
        if (written := self.run.written()) != self._seen:
            self._seen, self._status = written, self.run.look()
            if self._status is not None:
                able = sum(worker.state in _ABLE for worker in self._status.workers)
                self.looks.append(Look(now, self._status.phase is Phase.SUSPENDED, able))
        return self._status


def play(job: Job, plan: Plan, base: Path, limit: float | None = None) -> tuple[Round, RoundRun]:
    """Run it to its end, or for ``limit`` seconds, or those of its place.

    Nothing of it lives when this returns, but its files are there.
    """
    begin, limit = time.monotonic(), limit or job.place.limit
    run = job.run(plan, base)
    watch, injector = _Watch(run), None
    try:
        run.start()
        while not run.is_over() and (now := time.monotonic()) < begin + limit:
            status = watch.status(now)
            if status is not None and status.started is not None:
                injector = injector or Injector(run, plan.faults, now)
                injector.tick(now, status)
            time.sleep(LOOK)
        end = time.monotonic()
        if injector:
            injector.release(end)
        return _round(job, plan, run, watch.looks, injector, begin, end), run
    finally:
        run.close()


def undisturbed(job: Job, folder: Path, limit: float | None = None) -> Expected:
    """Return what every round has to come to. Raise SystemExit if this run goes wrong."""
    outcome = play(job, Plan(seed=0), folder / f"{job.engine}-undisturbed", limit)[0].outcome
    expected = Expected.by(outcome)
    troubles = judge(outcome, (), expected).troubles or (["it has no weights"] if not expected.weights else [])
    if troubles:
        raise SystemExit(f"the undisturbed run of {job.engine} went wrong: {'; '.join(troubles)}")
    return expected


def _round(
    job: Job, plan: Plan, run: RoundRun, looks: list[Look], injector: Injector | None, begin: float, end: float
) -> Round:
    applied = tuple(injector.applied) if injector else ()
    steps = [note for note in run.notes() if "step" in note and "time" in note]
    moments = [note["time"] for note in steps]
    done = Counter(note["step"] for note in steps if note["rank"] == 0)
    status, log = run.look(), run.log()
    return Round(
        engine=job.engine,
        plan=plan,
        outcome=Outcome(
            ended=_ended(run, status, end - begin),
            weights=_weights(run),
            pauses=_worst(pauses(moments, end, explanations(applied, looks, plan.minimum, end))),
            left=_left(run, job.place.grace) if run.is_over() else (),
            repeated=sum(times > 1 for times in done.values()) if job.durable else 0,
            digests=tuple(
                Digests(note["step"], note["rank"], note["size"], note["digests"])
                for note in steps
                if note.get("digests")
            ),
            tries=tuple(_tries(run, steps)),
        ),
        applied=applied,
        missed=tuple(injector.missed) if injector else plan.faults,
        seconds=end - begin,
        worlds=tuple(size for each in (*(lost.status for lost in run.lost), status) if each for size in sizes_of(each)),
        aborted=log.count("SIGABRT"),
    )


def _tries(run: RoundRun, steps: Sequence[Mapping[str, Any]]) -> Iterator[Try]:
    begin = float("-inf")
    for stored, end in (*((lost.stored, lost.gone) for lost in run.lost), (0, float("inf"))):
        numbers = [note["step"] for note in steps if begin < note["time"] <= end]
        yield Try(min(numbers, default=0), max(numbers, default=0), stored)
        begin = end


def _worst(found: list[Pause]) -> tuple[Pause, ...]:
    return tuple(found[:KEPT_PAUSES])


def _ended(run: RoundRun, status: Status | None, seconds: float) -> str:
    if not run.is_over():
        return f"not over after {seconds:.0f} s: {status.reason if status else 'no status'}"
    if status is None or not status.phase.final:
        return "the launcher has ended without a final status"
    return "" if status.phase is Phase.SUCCEEDED else f"failed, {status.failure}: {status.reason.partition(';')[0]}"


def _weights(run: RoundRun) -> tuple[float, ...]:
    """Of the ranks that came to the end, or how often each shard is in their state; none, where they differ."""
    found = {tuple(note[name]) for note in run.notes() for name in ("weights", "counts") if name in note}
    return found.pop() if len(found) == 1 else ()


def _left(run: RoundRun, grace: float) -> tuple[str, ...]:
    deadline = time.monotonic() + grace
    while (processes := run.processes()) and time.monotonic() < deadline:
        time.sleep(LOOK)
    return (*map(str, processes), *map(str, run.base.rglob("*.key")))
