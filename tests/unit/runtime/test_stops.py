"""What is told of ranks that were asked to end."""

from __future__ import annotations

from elastic_runtime.launcher.stops import Stopped, Stops, overdue_message, unhandled_message


def stopped(*codes: int, grace: float = 25.0, interrupt: int = 15, seconds: float = 1.0) -> list[Stopped]:
    stops = Stops()
    for index, code in enumerate(codes):
        stops.asked(f"w-{index}.0.0~0", Stopped(f"w-{index}.0.0", f"w-{index}", 100.0, grace, interrupt))
        assert not stops.take(), "others still have time"
        stops.ended(f"w-{index}.0.0~0", code, 100.0 + seconds)
    stops.ended("another~0", -9, 100.0)
    return stops.take()


def test_those_that_the_signal_itself_has_ended_have_no_handler() -> None:
    words = unhandled_message(stopped(-15, -15, 0))
    assert words is not None
    assert words.startswith("SIGTERM itself ended ranks w-0.0.0, w-1.0.0; rank w-2.0.0 ended by itself: ")


def test_those_that_handle_it_are_not_told_of() -> None:
    assert unhandled_message(stopped(0, 1, 143)) is None
    assert overdue_message(stopped(0, 1, -9)) is None, "killed by somebody else, before its time was over"


def test_an_end_for_good_needs_no_handler() -> None:
    assert unhandled_message(stopped(-15, interrupt=0)) is None


def test_those_that_were_killed_at_the_end_of_their_time_are_told_with_its_seconds() -> None:
    words = overdue_message(stopped(-9, 0, grace=3.0, seconds=3.1, interrupt=10))
    assert words is not None
    assert words.startswith("rank w-0.0.0 did not end within 3 s of SIGUSR1 and was killed; what it had not saved")
    assert overdue_message(stopped(-9, grace=3.0, seconds=3.1, interrupt=0)) == (
        "rank w-0.0.0 did not end within 3 s of SIGTERM and was killed"
    )


def test_who_is_killed_at_once_is_not_late() -> None:
    assert overdue_message(stopped(-9, grace=0.0)) is None
