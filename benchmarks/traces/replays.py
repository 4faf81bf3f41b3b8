"""Every policy on a trace, with and without notices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.traces.policy import PolicyName
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.simulator import Outcome, simulate
from elastic_runtime.rehearsal.trace import Notices, Trace


@dataclass(frozen=True, slots=True)
class Case:
    """How losses are announced."""

    key: str
    """In ``results.json``."""
    title: str
    notices: Notices


CASES = (
    Case("notice_120", "notice 120 s", Notices(1.0, 120.0)),
    Case("notice_30", "notice 30 s", Notices(1.0, 30.0)),
    Case("no_notice", "no notice", Notices(0.0)),
    Case("silent", "no notice, no word", Notices(0.0, silent=True)),
)
"""As on AWS; as on GCP and Azure; the connections of a lost machine are closed; they are not, as at a power failure."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One trace, one case."""

    trace: Trace
    case: Case
    job: Job
    outcomes: Mapping[PolicyName, Outcome]


def replay(
    trace: Trace, job: Job, policies: Mapping[PolicyName, Policy], cases: Iterable[Case] = CASES
) -> list[Replay]:
    """Run all of it. Who hears no notice fares the same whether there are any, and is run once."""
    replays = []
    deaf: dict[tuple[PolicyName, bool], Outcome] = {}
    for case in cases:
        outcomes = {}
        for name, policy in policies.items():
            key = name, case.notices.silent
            if policy.listens or key not in deaf:
                heard = case.notices if policy.listens else Notices(0.0, silent=case.notices.silent)
                outcomes[name] = deaf[key] = simulate(trace, policy, job, heard)
            outcomes[name] = deaf[key]
        replays.append(Replay(trace, case, job, outcomes))
    return replays
