"""The simulator of spot traces, event by event. What holds for any trace: test_trace_properties."""

from __future__ import annotations

import pytest

from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.rehearsal.policy import Policy
from elastic_runtime.rehearsal.simulator import TICK
from elastic_runtime.rehearsal.trace import Notices
from elastic_runtime.run.spec import Timing
from elastic_runtime.run.waits import COMMIT_CAUTION, LEAVE_MARGIN, NOTICE_CAUTION, NOTICE_MARGIN
from tests.unit.runtime.trace_bench import COSTS, ELASTIC, FIXED, RESTART, STOCK, job, run, trace, with_costs

STAYS = (0.0, 1000.0)
START = COSTS.machine_start + COSTS.worker_start + COSTS.session_start
FORMING = Timing().forming
NO_CHECKPOINTS = with_costs(ELASTIC, checkpoint_every=1e9)


class TestChanges:
    def test_a_machine_that_comes_costs_one_pause(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (500, 1000)), NO_CHECKPOINTS, job(1, 3))
        assert outcome.planned_resets == 1
        assert outcome.account.paused[Cause.RESIZING] == pytest.approx(COSTS.grow)
        assert outcome.history[-1][1:] == (3, 3)

    def test_machines_that_come_together_join_together(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (500, 1000), (500, 1000), (500, 1000)), ELASTIC, job(1, 5))
        assert outcome.planned_resets == 1

    def test_one_with_a_notice_leaves_shortly_before_its_end_and_no_step_is_lost(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (0, 600)), ELASTIC, job(1, 3), Notices(1.0, 120.0))
        assert (outcome.planned_resets, outcome.forced_resets, outcome.lost_steps) == (1, 0, 0)
        assert Cause.REDONE not in outcome.account.missed
        # The seconds that it is taken to need are idle, but for what it needs of them.
        needs = LEAVE_MARGIN + COMMIT_CAUTION * (job(1, 3).step_work / 3 + COSTS.checkpoint_write + COSTS.leave)
        assert outcome.account.missed[Cause.LEFT_EARLY] == pytest.approx(needs, abs=5)
        assert needs < 30, "of 120"

    def test_one_without_costs_the_begun_step_and_a_reset(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (0, 600.5)), NO_CHECKPOINTS, job(1, 3))
        assert (outcome.planned_resets, outcome.forced_resets, outcome.lost_steps) == (0, 1, 0)
        assert outcome.account.paused[Cause.RECOVERING] == pytest.approx(COSTS.forced_reset)
        assert 0 < outcome.account.missed[Cause.REDONE] < 4.0

    def test_one_that_vanishes_without_a_word_stops_the_others_until_they_know(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (0, 600)), ELASTIC, job(1, 3), Notices(0.0, silent=True))
        assert outcome.account.paused[Cause.RECOVERING] == pytest.approx(COSTS.silent_reset)

    def test_two_that_vanish_one_after_the_other_are_two_resets(self) -> None:
        made = trace(1000, STAYS, STAYS, (0, 600), (0, 610))
        outcome = run(made, ELASTIC, job(1, 4), Notices(0.0, silent=True))
        assert outcome.forced_resets == 2
        assert outcome.account.paused[Cause.RECOVERING] == pytest.approx(10 + COSTS.silent_reset)

    def test_a_world_that_cannot_form_with_one_that_vanished_is_given_up(self) -> None:
        slow = with_costs(NO_CHECKPOINTS, silent_reset=300.0)
        outcome = run(trace(1500, (0, 1500), (0, 1500), (0, 400), (0, 600)), slow, job(1, 4), Notices(0.0, silent=True))
        pauses = (700 - 400, FORMING, COSTS.forced_reset)
        assert outcome.account.paused[Cause.RECOVERING] == pytest.approx(sum(pauses), abs=2 * TICK)
        assert outcome.history[-1][1:] == (2, 2)


class TestBelowTheMinimum:
    def test_it_waits_with_the_state_in_memory_and_goes_on(self) -> None:
        outcome = run(trace(1000, STAYS, (0, 600.5), (800, 1000)), ELASTIC, job(2, 2))
        assert (outcome.sessions, outcome.lost_steps) == (1, 0)
        waited = 800 - 600.5 + COSTS.machine_start + COSTS.worker_start
        assert outcome.account.paused[Cause.WAITING] == pytest.approx(waited)

    def test_it_ends_when_that_takes_longer_than_max_wait(self) -> None:
        outcome = run(trace(1000, STAYS, (0, 600), (800, 1000)), ELASTIC, job(2, 2, max_wait=100.0))
        assert outcome.end == "fewer than 2 ranks for 101 s"
        assert outcome.account.paused[Cause.WAITING] == pytest.approx(101, abs=1)
        assert outcome.account.paused[Cause.STOPPED] == pytest.approx(299, abs=1)

    @pytest.mark.parametrize(("policy", "minimum"), [(ELASTIC, 2), (FIXED, 1)])
    def test_the_last_who_waits_writes_what_it_holds_when_it_has_a_notice(self, policy: Policy, minimum: int) -> None:
        # The first trains to its deadline, for fewer would be too few; the other has its notice when it waits already.
        made = trace(1000, (0, 650), (0, 600.5), (700, 1000), (700, 1000))
        outcome = run(made, with_costs(policy, checkpoint_every=1e9), job(minimum, 2), Notices(1.0, 30.0))
        assert (outcome.sessions, outcome.lost_steps) == (2, 0)

    def test_in_fixed_mode_a_spare_machine_takes_over(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (0, 600.5)), with_costs(FIXED, checkpoint_every=1e9), job(1, 3, 2))
        assert outcome.history[-1][1:] == (2, 2)
        assert outcome.account.paused.get(Cause.WAITING, 0.0) <= COSTS.worker_start


class TestTheWholeFleet:
    MADE = trace(1000, (0, 500), (0, 500), (700, 1000), (700, 1000))

    def test_gone_without_notice_costs_what_came_after_the_newest_checkpoint(self) -> None:
        outcome = run(self.MADE, ELASTIC, job(1, 2))
        assert outcome.sessions == 2
        # Two workers do a step of 4 s in 2; a checkpoint begins every 60 s and takes 8.
        assert 0 < outcome.lost_steps * 2 <= COSTS.checkpoint_every + COSTS.checkpoint_write + 2
        assert outcome.account.paused[Cause.RESTARTING] == pytest.approx(COSTS.session_start + COSTS.checkpoint_read)

    def test_gone_with_notice_costs_no_step(self) -> None:
        outcome = run(self.MADE, ELASTIC, job(1, 2), Notices(1.0, 120.0))
        assert (outcome.sessions, outcome.lost_steps) == (2, 0)
        # All stand at the last commit that could be made durable, no longer than that may take (last_commit.py).
        most = NOTICE_MARGIN + NOTICE_CAUTION * (2 + COSTS.checkpoint_write) + 2
        assert 0 < outcome.account.paused[Cause.STANDING] <= most

    def test_gone_before_a_checkpoint_could_be_written_it_starts_anew(self) -> None:
        outcome = run(trace(1000, (0, 60), (200, 1000)), ELASTIC, job(1, 1))
        assert outcome.lost_steps == (60 - START) // 4
        assert outcome.account.paused[Cause.RESTARTING] == pytest.approx(COSTS.session_start)

    def test_a_machine_that_goes_while_the_first_world_forms_is_done_without(self) -> None:
        outcome = run(trace(1000, STAYS, STAYS, (0, START - 1)), ELASTIC, job(1, 3))
        assert outcome.history[-1][1:] == (2, 2)
        assert outcome.lost_steps == 0


class TestOthers:
    MADE = trace(1000, STAYS, STAYS, (0, 600), (300, 1000))

    def test_stock_horovod_hears_no_notice(self) -> None:
        assert run(self.MADE, STOCK, job(1, 3)) == run(self.MADE, STOCK, job(1, 3), Notices(1.0, 120.0))

    def test_a_restart_on_every_change_goes_back_to_a_checkpoint_each_time(self) -> None:
        outcome = run(self.MADE, RESTART, job(1, 3))
        assert outcome.sessions == 3
        assert outcome.planned_resets == outcome.forced_resets == 0
        assert outcome.lost_steps > 0
