"""The simulator of spot traces: what holds for any trace."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.traces.policy import job_for
from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.rehearsal.costs import FREE
from elastic_runtime.rehearsal.policy import Job, Policy, oracle_rate
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.trace import Notices, Stay, Trace
from elastic_runtime.run.spec import RecoveryMode
from tests.examples import costly
from tests.unit.runtime.trace_bench import ELASTIC, FIXED, job, notices, policies, run, trace, traces

ENOUGH = 60.0
"""Seconds of notice: for a commit, a write under way, one more, and all the caution that there is."""
efficiencies = st.sampled_from([1.0, 0.9, 0.6])


def oracle_work(made: Trace, work: Job) -> float:
    levels = [*made.levels(), (made.duration, 0)]
    return sum(oracle_rate(count, work) * (end - begin) for (begin, count), (end, _) in pairwise(levels))


class TestAnyTrace:
    @costly()
    @given(traces(), policies, notices, efficiencies)
    def test_never_more_than_the_oracle(
        self, made: Trace, policy: Policy, announced: Notices, efficiency: float
    ) -> None:
        work = job_for(made, scaling=Scaling(efficiency))
        outcome = run(made, policy, work, announced)
        assert outcome.account.oracle == pytest.approx(oracle_work(made, work))
        assert 0 <= outcome.useful <= outcome.account.oracle + 1e-6

    @costly()
    @given(traces(), policies, notices, efficiencies)
    def test_whatever_is_missed_has_a_cause(
        self, made: Trace, policy: Policy, announced: Notices, efficiency: float
    ) -> None:
        outcome = run(made, policy, job_for(made, scaling=Scaling(efficiency)), announced)
        account = outcome.account
        assert all(work >= -1e-6 for work in account.missed.values())
        assert outcome.useful + sum(account.missed.values()) == pytest.approx(account.oracle)
        assert account.training + sum(account.paused.values()) == pytest.approx(made.duration)

    @costly()
    @given(traces(), policies, notices)
    def test_is_the_same_every_time(self, made: Trace, policy: Policy, announced: Notices) -> None:
        assert run(made, policy, job_for(made), announced) == run(made, policy, job_for(made), announced)

    @given(traces(shortest=ENOUGH + 1), st.sampled_from([ELASTIC, FIXED]), st.integers(1, 8), st.integers(1, 8))
    def test_no_step_is_lost_when_every_loss_is_announced_in_time(
        self, made: Trace, policy: Policy, minimum: int, fixed: int
    ) -> None:
        least = min(minimum, made.peak)
        work = job(least, made.peak, min(max(least, fixed), made.peak))
        assert run(made, policy, work, Notices(1.0, ENOUGH)).lost_steps == 0

    @costly()
    @given(traces(), notices)
    def test_in_fixed_mode_it_trains_with_exactly_as_many_or_not_at_all(self, made: Trace, announced: Notices) -> None:
        work = job_for(made)
        sizes = {ranks for _, _, ranks in run(made, FIXED, work, announced).history}
        # One beyond the wanted, while it alone holds the state.
        assert sizes <= {0, work.fixed, work.fixed + 1}

    @costly()
    @given(traces())
    def test_when_nothing_takes_any_time_next_to_nothing_is_missed(self, made: Trace) -> None:
        one_stays = replace(made, stays=(Stay("z", 0.0, made.duration), *made.stays))
        work = Job(1, one_stays.peak, one_stays.peak, step_work=0.01)
        outcome = run(one_stays, Policy(FREE, gather=0.0), work)
        # A launcher waits a tick before it opens a session with fewer than wanted; a loss costs the step begun.
        assert outcome.account.oracle - outcome.useful <= one_stays.peak + 0.1 * len(one_stays.stays)

    @costly()
    @given(st.floats(60, 7200), st.integers(1, 16), st.sampled_from([RecoveryMode.ELASTIC, RecoveryMode.FIXED]))
    def test_without_events_it_costs_nothing_but_the_start(
        self, duration: float, machines: int, mode: RecoveryMode
    ) -> None:
        policy = Policy(ELASTIC.costs, mode)
        outcome = run(trace(duration, *[(0.0, duration)] * machines), policy, job(1, machines))
        costs = policy.costs
        start = costs.machine_start + costs.worker_start + costs.session_start
        assert outcome.account.missed.keys() <= {Cause.STARTING, Cause.CHECKPOINTING}
        assert outcome.account.paused[Cause.STARTING] == pytest.approx(start)
        copies = round(outcome.account.paused.get(Cause.CHECKPOINTING, 0.0) / costs.checkpoint_stall, 6)
        assert copies <= duration // costs.checkpoint_every
