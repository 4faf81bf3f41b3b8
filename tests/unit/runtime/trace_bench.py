"""Traces and costs in a word, for the tests of the simulator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.simulator import Outcome, simulate
from elastic_runtime.rehearsal.trace import Notices, Stay, Trace
from elastic_runtime.run.spec import RecoveryMode

COSTS = Costs(
    machine_start=20,
    worker_start=4,
    session_start=3,
    grow=0.5,
    leave=0.25,
    forced_reset=0.2,
    silent_reset=30.2,
    checkpoint_every=60,
    checkpoint_stall=0.5,
    checkpoint_write=8,
    checkpoint_read=5,
)
ELASTIC = Policy(COSTS)
FIXED = Policy(COSTS, RecoveryMode.FIXED)
STOCK = Policy(COSTS, listens=False)
RESTART = Policy(COSTS, listens=False, in_place=False, gather=0.0)
UNANNOUNCED = Notices(0.0)


def trace(duration: float, *stays: tuple[float, float]) -> Trace:
    """Machines ``node00``, ``node01`` … by begin and end."""
    made = [Stay(f"node{index:02}", begin, min(end, duration)) for index, (begin, end) in enumerate(stays)]
    return Trace("made", tuple(sorted(made, key=lambda stay: (stay.begin, stay.name))), duration)


def job(minimum: int, maximum: int, fixed: int | None = None, **others: float) -> Job:
    made = Job(minimum, maximum, fixed or maximum, step_work=4.0)
    return replace(made, **others)  # type: ignore[arg-type]  # each test names fields of the right type


def with_costs(policy: Policy, **others: float) -> Policy:
    return replace(policy, costs=replace(policy.costs, **others))


def run(given: Trace, policy: Policy, work: Job, notices: Notices = UNANNOUNCED) -> Outcome:
    return simulate(given, policy, work, notices)


@st.composite
def traces(draw: st.DrawFn, shortest: float = 1.0) -> Trace:
    """Up to eight machines over up to an hour."""
    duration = draw(st.floats(600, 3600))
    stays = []
    for _ in range(draw(st.integers(1, 8))):
        begin = draw(st.just(0.0) | st.floats(0, duration - shortest - 1))
        stays.append((begin, begin + draw(st.floats(shortest, duration))))
    return trace(duration, *stays)


notices = st.builds(Notices, st.floats(0, 1), st.sampled_from([0.0, 15.0, 120.0]), st.booleans(), st.integers(0, 9))
policies = st.sampled_from([ELASTIC, FIXED, STOCK, RESTART])
