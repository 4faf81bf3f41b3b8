"""Which size a plan wants when: days on which clocks change included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.decision.sizing import planned, planned_sizes, zone_of
from elastic_runtime.run.spec import MAX_PLAN_WINDOWS, PlanWindow, RunSpec, SizePlan, WorkersSpec

NIGHTS = SizePlan("Asia/Shanghai", 2, (PlanWindow(8, "22:00", "06:00"),))


def at(text: str, zone: str = "Asia/Shanghai") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("now", "workers", "since", "until"),
    [
        ("2026-03-02 21:59", 2, "2026-03-02 06:00", "2026-03-02 22:00"),
        ("2026-03-02 22:00", 8, "2026-03-02 22:00", "2026-03-03 06:00"),
        ("2026-03-03 05:59", 8, "2026-03-02 22:00", "2026-03-03 06:00"),
        ("2026-03-03 06:00", 2, "2026-03-03 06:00", "2026-03-03 22:00"),
    ],
)
def test_nights(now: str, workers: int, since: str, until: str) -> None:
    found = planned(NIGHTS, at(now))
    assert (found.workers, found.since, found.until) == (workers, at(since), at(until))


def test_days_of_the_week_are_those_on_which_it_begins() -> None:
    plan = SizePlan("UTC", 1, (PlanWindow(4, "22:00", "06:00", (5,)), PlanWindow(3, "00:00", "24:00", (6, 7))))
    friday = at("2026-03-06 23:00", "UTC")
    sizes = [planned(plan, friday + timedelta(hours=hours)).workers for hours in (-2, 0, 6, 7, 24, 48, 49)]
    assert sizes == [1, 4, 4, 3, 3, 3, 1]


def test_the_first_window_counts() -> None:
    plan = SizePlan("UTC", 1, (PlanWindow(4, "12:00", "13:00"), PlanWindow(2, "00:00", "24:00")))
    assert [planned(plan, at(f"2026-03-02 {hour}:30", "UTC")).workers for hour in (11, 12, 13)] == [2, 4, 2]


@pytest.mark.parametrize(
    ("window", "now", "since", "until"),
    [
        # Paris puts its clocks forward at 02:00 on 2026-03-29, and back at 03:00 on 2026-10-25.
        (("22:00", "06:00"), "2026-03-28T23:00Z", "2026-03-28T21:00Z", "2026-03-29T04:00Z"),
        (("02:30", "06:00"), "2026-03-29T01:45Z", "2026-03-29T01:30Z", "2026-03-29T04:00Z"),
        (("01:00", "02:30"), "2026-03-29T01:15Z", "2026-03-29T00:00Z", "2026-03-29T01:30Z"),
        (("22:00", "06:00"), "2026-10-25T00:00Z", "2026-10-24T20:00Z", "2026-10-25T05:00Z"),
        (("02:30", "06:00"), "2026-10-25T00:45Z", "2026-10-25T00:30Z", "2026-10-25T05:00Z"),
    ],
)
def test_days_on_which_clocks_change(window: tuple[str, str], now: str, since: str, until: str) -> None:
    found = planned(SizePlan("Europe/Paris", 1, (PlanWindow(4, *window),)), datetime.fromisoformat(now))
    assert (found.workers, found.since, found.until) == (
        4,
        datetime.fromisoformat(since),
        datetime.fromisoformat(until),
    )


times = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 15, 30, 59]))
plans = st.builds(
    SizePlan,
    st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Shanghai"]),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.integers(1, 9), times, times, st.sets(st.integers(1, 7), min_size=1))
        .filter(lambda each: each[1] != each[2])
        .map(lambda each: PlanWindow(each[0], each[1], each[2], tuple(sorted(each[3])))),
        min_size=1,
        max_size=3,
    ).map(tuple),
)
moments = st.integers(0, 6 * 365 * 24 * 60).map(
    lambda minutes: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)


@given(plans, moments)
def test_what_it_wants_holds_exactly_until_it_says(plan: SizePlan, now: datetime) -> None:
    found = planned(plan, now)
    assert found.since <= now < found.until
    for moment in (found.since, found.until - timedelta(seconds=1)):
        assert planned(plan, moment) == found
    following = planned(plan, found.until)
    assert following.since == found.until


@given(plans, moments)
def test_the_parts_of_a_week_meet(plan: SizePlan, now: datetime) -> None:
    parts = [planned(plan, now)]
    while parts[-1].until < now + timedelta(days=8):
        parts.append(planned(plan, parts[-1].until))
        assert len(parts) < 100
    assert all(before.until == after.since for before, after in pairwise(parts))


@given(plans, moments)
def test_the_sizes_to_come_are_those_that_it_will_want(plan: SizePlan, now: datetime) -> None:
    found = planned_sizes(plan, now)
    assert found[0] == planned(plan, now)
    assert all(before.until == after.since for before, after in pairwise(found))
    for each in found:
        if each.since < now + timedelta(days=7):
            assert planned(plan, each.since).workers == each.workers


class TestWhatIsNoPlan:
    @pytest.mark.parametrize("time", ["25:00", "22", "22:60", "-1:00", "24:01", "22:00:00", "٢٢:00", "", 22])
    def test_times(self, time: str) -> None:
        with pytest.raises(InvalidSettings, match="time of day"):
            PlanWindow(1, "00:00", time)

    def test_windows(self) -> None:
        for wrong in (("06:00", "06:00"), ("24:00", "06:00"), ("00:00", "06:00", ()), ("00:00", "06:00", (0,))):
            with pytest.raises(InvalidSettings):
                PlanWindow(1, *wrong)
        for count in (0, MAX_PLAN_WINDOWS + 1):
            with pytest.raises(InvalidSettings, match="windows"):
                SizePlan("UTC", 1, NIGHTS.windows * count)

    def test_sizes_out_of_bounds(self) -> None:
        with pytest.raises(InvalidSettings, match="8 workers are outside"):
            RunSpec("run", "1", ("python",), WorkersSpec(1, 2, 4), size_plan=NIGHTS)

    @pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "", "a\0b"])
    def test_zones(self, zone: str) -> None:
        with pytest.raises(InvalidSettings, match="timezone"):
            zone_of(SizePlan(zone, 1, NIGHTS.windows))
