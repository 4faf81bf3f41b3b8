"""Where the time went that was not training: the rules of docs/observing.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from elastic_runtime.launcher.record.lost_time import LostSeconds
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.run.status_figures import LostTime

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def lost(told: dict[str, float]) -> dict[str, float]:
    assert set(told) | {LostTime.CHECKPOINT} == set(LostTime)
    return {cause: seconds for cause, seconds in told.items() if seconds}


def trained(until: float = 10) -> LostSeconds:
    """First step at 8, last one then."""
    seconds = LostSeconds(at(0))
    seconds.world_complete(at(7))
    seconds.stepped(at(8))
    seconds.stepped(at(until))
    return seconds


def test_starting_ends_with_the_first_step() -> None:
    seconds = LostSeconds(at(0))
    seconds.stands(Phase.STARTING, at(1))
    assert lost(seconds.told(at(2))) == {"starting": 2}
    seconds.world_complete(at(7))
    assert lost(seconds.told(at(7.5))) == {"starting": 7}
    seconds.stepped(at(8))
    assert lost(seconds.told(at(100))) == {"starting": 8}


def test_a_script_that_tells_no_step_trains_while_it_has_a_world() -> None:
    seconds = LostSeconds(at(0))
    seconds.world_complete(at(7))
    assert lost(seconds.told(at(60))) == {"starting": 7}
    seconds.world_over(at(60))
    seconds.world_complete(at(62))
    assert lost(seconds.told(at(90))) == {"starting": 7, "resize": 2}
    seconds.disturbed(at(90))
    seconds.world_complete(at(95))
    seconds.ended(at(99))
    assert lost(seconds.told(at(99))) == {"starting": 7, "resize": 2, "recovery": 5}


def test_but_a_first_step_shows_when_it_began() -> None:
    seconds = LostSeconds(at(0))
    seconds.world_complete(at(7))
    assert lost(seconds.told(at(20))) == {"starting": 7}
    seconds.stepped(at(30))
    assert lost(seconds.told(at(40))) == {"starting": 30}


def test_a_resize_lasts_from_the_last_step_to_the_first() -> None:
    seconds = trained()
    seconds.world_over(at(10.5))
    seconds.stepped(at(10.75))  # the old world's last
    seconds.world_complete(at(11))
    assert lost(seconds.told(at(11))) == {"starting": 8, "resize": 0.25}
    seconds.stepped(at(12))
    assert lost(seconds.told(at(20))) == {"starting": 8, "resize": 1.25}


def test_a_world_that_replaces_another_at_once_is_a_resize() -> None:
    seconds = trained()
    seconds.world_complete(at(11))
    seconds.stepped(at(12))
    assert lost(seconds.told(at(20))) == {"starting": 8, "resize": 2}


def test_a_loss_makes_it_a_recovery() -> None:
    seconds = trained()
    seconds.disturbed(at(13))
    seconds.stepped(at(13.1))  # of the old world, told late
    seconds.world_over(at(13.2))
    seconds.disturbed(at(13.3))
    seconds.world_complete(at(14))
    seconds.stepped(at(15))
    assert lost(seconds.told(at(20))) == {"starting": 8, "recovery": 5}


def test_a_loss_in_a_resize_is_a_recovery_from_then_on() -> None:
    seconds = trained()
    seconds.world_over(at(11))
    seconds.disturbed(at(12))
    seconds.world_complete(at(14))
    seconds.stepped(at(15))
    assert lost(seconds.told(at(20))) == {"starting": 8, "resize": 2, "recovery": 3}


def test_a_loss_before_the_first_step_is_a_start() -> None:
    seconds = LostSeconds(at(0))
    seconds.world_complete(at(1))
    seconds.disturbed(at(2))
    seconds.stepped(at(2.1))
    seconds.world_complete(at(3))
    seconds.stepped(at(4))
    assert lost(seconds.told(at(9))) == {"starting": 4}


def test_while_suspended_it_waits_for_capacity() -> None:
    seconds = trained()
    seconds.disturbed(at(12))
    seconds.stands(Phase.SUSPENDED, at(13))
    seconds.world_over(at(13))
    seconds.stands(Phase.SUSPENDED, at(30))
    seconds.stands(Phase.RUNNING, at(63))
    seconds.world_complete(at(64))
    seconds.stepped(at(65))
    assert lost(seconds.told(at(70))) == {"starting": 8, "recovery": 3 + 2, "waiting_for_capacity": 50}


def test_a_pause_is_not_lost_but_what_it_takes_to_begin_again_is() -> None:
    seconds = trained()
    seconds.world_over(at(12))
    for moment in (13, 500):
        seconds.stands(Phase.PAUSED, at(moment))
    seconds.stands(Phase.SUSPENDED, at(1000))
    seconds.stands(Phase.RUNNING, at(1004))
    seconds.world_complete(at(1005))
    seconds.stepped(at(1007))
    assert lost(seconds.told(at(1010))) == {"starting": 8, "resize": 3 + 3, "waiting_for_capacity": 4}


def test_what_the_script_s_own_checkpoints_cost_is_not_known_until_one_is_told() -> None:
    seconds = trained()
    assert LostTime.CHECKPOINT not in seconds.told(at(20))
    seconds.stalled(0.0)
    told = seconds.told(at(20))
    assert told[LostTime.CHECKPOINT] == 0.0
    before = Status("run", "uid", Phase.RUNNING, "", at(20), started=at(7), lost_seconds=told)
    assert LostTime.CHECKPOINT in LostSeconds(at(30), before).told(at(31))


def test_stalls_of_checkpoints_are_counted_beside() -> None:
    seconds = trained()
    seconds.stalled(0.25)
    seconds.stalled(0.5)
    assert lost(seconds.told(at(20))) == {"starting": 8, "checkpoint": 0.75}


def test_the_end_is_no_resize() -> None:
    seconds = trained()
    seconds.world_over(at(11))
    seconds.ended(at(13))
    assert lost(seconds.told(at(99))) == {"starting": 8}


def test_nothing_is_lost_after_the_end() -> None:
    seconds = trained()
    seconds.disturbed(at(11))
    seconds.ended(at(13))
    assert lost(seconds.told(at(99))) == {"starting": 8, "recovery": 3}


def test_a_clock_that_is_set_back_takes_nothing_back() -> None:
    seconds = trained()
    seconds.world_over(at(11))
    seconds.world_complete(at(-50))
    seconds.stepped(at(-49))
    assert lost(seconds.told(at(-49))) == {"starting": 8}


class TestTheNextLauncher:
    def status(self, phase: Phase = Phase.RUNNING) -> Status:
        told = trained().told(at(10))
        return Status("run", "uid", phase, "", at(10), started=at(7), lost_seconds=told)

    def test_counts_the_time_since_as_recovery(self) -> None:
        seconds = LostSeconds(at(20), self.status())
        seconds.world_complete(at(25))
        seconds.stepped(at(26))
        assert lost(seconds.told(at(30))) == {"starting": 8, "recovery": 16}

    def test_goes_on_waiting(self) -> None:
        seconds = LostSeconds(at(20), self.status(Phase.SUSPENDED))
        seconds.stands(Phase.RUNNING, at(25))
        seconds.world_complete(at(25))
        seconds.stepped(at(26))
        assert lost(seconds.told(at(30))) == {"starting": 8, "waiting_for_capacity": 15, "recovery": 1}

    def test_goes_on_starting(self) -> None:
        before = Status("run", "uid", Phase.STARTING, "", at(10), lost_seconds=LostSeconds(at(0)).told(at(10)))
        assert lost(LostSeconds(at(20), before).told(at(20))) == {"starting": 20}

    def test_takes_a_status_that_knew_no_lost_seconds(self) -> None:
        before = Status("run", "uid", Phase.RUNNING, "", at(10), started=at(7))
        assert lost(LostSeconds(at(20), before).told(at(20))) == {"recovery": 10}
