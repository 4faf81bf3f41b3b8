"""Each training through each fault alone, in the place that PLACE names: it ends as if nothing had been done to it.

The rounds of ``make chaos``, with one fault each. Judged alike: weights of the undisturbed run to the bit, states after
every fifth step too, each shard once, no step lost by a size or a notice, no longer pause than ``LONGEST_PAUSE``,
nothing left behind. After the loss of its launcher a run begins with its newest checkpoint. FAMILY is ``torch`` or
``tensorflow``, the one that this environment has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.jobs import BY_TENSORFLOW, JOBS, RESTARTED, TAKING, Job
from tests.chaos.judge import Expected, judge
from tests.chaos.places import PLACES, Place
from tests.chaos.plan import Fault, FaultKind, Plan, Stand
from tests.chaos.round import Round, play, undisturbed

PLACE = os.environ.get("PLACE") or "local"
FAMILIES = {"torch": (*JOBS, *RESTARTED, *TAKING), "tensorflow": BY_TENSORFLOW}
TRAININGS = {job.engine: job for job in FAMILIES[os.environ.get("FAMILY") or "torch"]}
FOR_ALL = [name for name, job in TRAININGS.items() if not job.kind.path]
WITHOUT_CHECKPOINTS = [name for name in TRAININGS if name not in FOR_ALL]
SURE_NOTICE = 8.0
"""Seconds: all that has to happen happens before."""
STANDSTILL = 5.0
"""Seconds: ``recovery.standstill``."""
HALF = 40
"""Step of which there is a checkpoint when a launcher is killed."""

Played = Callable[[Plan], Round]
"""Plays a plan, and fails where it did not end as it should."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.shows(
        engine=("horovod", "torch", "torch-sharded", "torchrun", "horovodrun", "horovod-shards", "torch-shards"),
        place=("local", "slurm", "pool"),
    ),
    pytest.mark.shows(
        engine=("horovod", "horovodrun"), framework="tensorflow", place="local", by="test-matrix-tensorflow"
    ),
]


@pytest.fixture(scope="session")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all rounds: pods see no other."""
    return tmp_path_factory.mktemp("rounds")


@pytest.fixture(scope="session")
def place(rounds: Path) -> Iterator[Place]:
    with PLACES[PLACE](rounds) as found:
        yield found


@pytest.fixture(scope="session")
def expected(place: Place, rounds: Path) -> Callable[[Job], Expected]:
    """What a training comes to that nobody disturbs."""

    @cache
    def by(job: Job) -> Expected:
        return Expected(job.weights) if job.weights else undisturbed(job, rounds)

    return by


@pytest.fixture(params=FOR_ALL)
def played(
    request: pytest.FixtureRequest, place: Place, expected: Callable[[Job], Expected], rounds: Path, tmp_path: Path
) -> Played:
    job = replace(TRAININGS[request.param], place=place)
    folder = rounds / tmp_path.name

    def played(plan: Plan) -> Round:
        found, run = play(job, plan, folder)
        troubles = judge(found.outcome, found.applied, expected(job)).troubles
        assert not troubles, run.report("; ".join(troubles))
        assert not found.missed, run.report(f"nobody was there for {found.missed}")
        return found

    return played


def plan(*faults: Fault) -> Plan:
    return Plan(seed=0, checkpoint_every=0.2, faults=faults)


@pytest.mark.shows(fault="resize")
def test_it_trains_at_other_sizes(played: Played) -> None:
    found = played(plan(*(Fault(at, FaultKind.RESIZE, size=size) for at, size in ((0.5, 3), (3.0, 1)))))
    assert {2, 1} <= set(found.worlds)


@pytest.mark.shows(fault="notice")
def test_a_worker_leaves_before_it_is_taken(played: Played) -> None:
    found = played(plan(Fault(1.0, FaultKind.NOTICE, 0.9, SURE_NOTICE, taken=True)))
    assert len(found.worlds) > 1


@pytest.mark.shows(fault="notices")
def test_all_workers_are_taken_and_others_go_on(played: Played) -> None:
    found = played(plan(Fault(1.0, FaultKind.NOTICE_ALL, 0.0, SURE_NOTICE, taken=True)))
    assert len(found.worlds) > 1


@pytest.mark.shows(fault="rank")
def test_a_rank_is_killed(played: Played) -> None:
    assert len(played(plan(Fault(1.0, FaultKind.KILL_RANK, 0.9))).worlds) > 1


@pytest.mark.shows(fault="worker")
def test_a_worker_is_killed_with_its_ranks(played: Played) -> None:
    assert len(played(plan(Fault(1.0, FaultKind.KILL_AGENT, 0.9))).worlds) > 1


@pytest.mark.shows(fault="all")
def test_all_ranks_are_killed_at_once(played: Played) -> None:
    assert len(played(plan(Fault(1.5, FaultKind.KILL_ALL_RANKS))).worlds) > 1


@pytest.mark.shows(fault="standstill")
def test_a_rank_that_stands_still_is_replaced(played: Played) -> None:
    found = played(replace(plan(), stand=Stand("stop", step=20, rank=1), standstill=STANDSTILL))
    assert len(found.worlds) > 1


@pytest.mark.shows(fault="pause")
def test_a_pause_leaves_no_worker_and_costs_no_step(played: Played) -> None:
    found = played(plan(Fault(1.0, FaultKind.PAUSE, seconds=1.0)))
    assert len(found.worlds) > 1
    assert found.applied[0].until is not None, "it was paused, and has been resumed"


@pytest.mark.shows(fault="launcher")
@pytest.mark.shows(
    engine=("horovod", "torch", "torch-sharded", "torchrun", "horovodrun", "horovod-shards", "torch-shards"),
    place="kubernetes",
    fault="launcher",
)
def test_a_launcher_is_killed_and_the_next_one_goes_on(played: Played) -> None:
    found = played(plan(Fault(1.0, FaultKind.LOSE_LAUNCHER, stored=HALF)))
    assert [each.stored >= HALF for each in found.outcome.tries] == [True, False]


@pytest.mark.skipif(not WITHOUT_CHECKPOINTS or PLACE in ("kubernetes", "pool"), reason="no engine of tests is there")
@pytest.mark.parametrize("played", WITHOUT_CHECKPOINTS, indirect=True)
def test_without_checkpoints_the_next_launcher_begins_again(played: Played) -> None:
    assert [each.first for each in played(plan(Fault(2.0, FaultKind.LOSE_LAUNCHER))).outcome.tries] == [1, 1]
