"""How many workers a run shall have: by its bounds, by whoever asks, by its plan; on virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.launcher.decision.sizing import SizeWish, Sizing
from elastic_runtime.run.spec import PlanWindow, RunSpec, SizePlan, WorkersSpec
from elastic_runtime.run.status import Pause

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
PLAIN = RunSpec("run", "1", ("python",), WorkersSpec(1, 2, 8))
PLANNED = RunSpec(
    "run", "1", ("python",), WorkersSpec(1, 3, 8), size_plan=SizePlan("UTC", 2, (PlanWindow(8, "22:00", "06:00"),))
)


@dataclass
class World:
    """Where sizes are asked for, and the launcher's look at it."""

    sizing: Sizing
    asked: int | str | None
    now: datetime = NOON
    writes: bool = True
    wish: SizeWish | None = None

    def look(self, hours: float = 0) -> int:
        """What is wanted, so many hours later."""
        self.now += timedelta(hours=hours)
        self.note = self.sizing.look(self.asked, self.now, self.wish)
        if self.sizing.write and self.writes:
            self.asked = self.sizing.wanted
        return self.sizing.wanted


def test_whoever_asks_within_the_bounds_is_followed() -> None:
    world = World(Sizing(PLAIN), 2)
    assert (world.look(), world.note) == (2, None)
    world.asked = 5
    assert (world.look(), world.note) == (5, "5 workers asked for, 2 before")
    assert (world.look(), world.note) == (5, None)


@pytest.mark.parametrize(("asked", "within"), [(0, 1), (-7, 1), (9, 8), (10**9, 8)])
def test_out_of_bounds_is_brought_back_and_told_once(asked: int, within: int) -> None:
    world = World(Sizing(PLAIN), 2)
    world.look()
    world.asked = asked
    assert world.look() == within == world.asked
    assert world.note == f"{asked} workers asked for, outside 1 to 8: brought back to {within}"
    assert (world.look(), world.note) == (within, None)


@pytest.mark.parametrize("garbage", ["", "three", "3.5", "\x1b[31m" + "x" * 10_000])
def test_what_is_no_number_is_replaced_by_what_was_there_before(garbage: str) -> None:
    world = World(Sizing(PLAIN), 4)
    world.look()
    world.asked = garbage
    assert world.look() == 4 == world.asked
    assert world.note is not None
    assert len(world.note) < 200
    assert "\x1b" not in world.note


def test_a_writing_that_fails_is_made_again_and_somebody_elses_wish_wins() -> None:
    world = World(Sizing(PLAIN), 9, writes=False)
    assert [world.look() for _ in range(3)] == [8, 8, 8]
    assert world.asked == 9
    world.asked = 3
    assert world.look() == 3
    world.writes, world.asked = True, 9
    assert (world.look(), world.asked) == (8, 8)


def test_nothing_is_asked_for_while_nothing_is_there() -> None:
    world = World(Sizing(PLAIN), None)
    assert world.look() == 2
    world.asked = 4
    world.look()
    world.asked = None
    assert (world.look(), world.asked) == (4, None)


class TestPlan:
    def test_is_carried_out_from_the_start(self) -> None:
        world = World(Sizing(PLANNED), 3)
        assert (world.look(), world.asked) == (2, 2)
        assert world.note == "2 workers by the size plan, until 2026-03-02T22:00+00:00"
        assert [world.look(hours) for hours in (9.99, 0.02, 7.9, 0.2)] == [2, 8, 8, 2]

    def test_a_wish_wins_until_the_next_window_begins(self) -> None:
        world = World(Sizing(PLANNED), 3)
        world.look()
        world.asked = 5
        assert [world.look(hours) for hours in (0, 9, 1.5, 0)] == [5, 5, 8, 8]
        world.asked = 1
        assert [world.look(hours) for hours in (0, 7, 1)] == [1, 1, 2]

    def test_the_next_launcher_goes_on(self) -> None:
        world = World(Sizing(PLANNED), 3)
        world.look()
        world.look()
        world.asked = 5  # A wish, which the launcher has followed when it is lost.
        world.look()
        after = World(Sizing(PLANNED, world.sizing.window), world.asked, world.now)
        assert [after.look(hours) for hours in (0, 1, 10)] == [5, 5, 8]

    def test_a_window_that_began_while_there_was_no_launcher_is_carried_out(self) -> None:
        world = World(Sizing(PLANNED), 3)
        world.look()
        world.look()
        after = World(Sizing(PLANNED, world.sizing.window), 5, world.now + timedelta(hours=11))
        assert after.look() == 8

    def test_a_window_that_was_not_written_is_not_told_as_carried_out(self) -> None:
        world = World(Sizing(PLANNED), 3, writes=False)
        assert world.look() == 2
        assert world.look() == 2
        assert world.sizing.window is None
        world.writes = True
        world.look()
        world.look()
        assert world.sizing.window == datetime(2026, 3, 2, 6, tzinfo=UTC)

    def test_a_clock_that_is_put_back_begins_no_window_again(self) -> None:
        world = World(Sizing(PLANNED), 3)
        world.look(10)
        world.look()
        world.asked = 5
        assert [world.look(hours) for hours in (0, -1, 0, 1.5)] == [5, 5, 5, 5]

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 12) | st.none()), max_size=20))
    def test_is_always_within_the_bounds(self, course: list[tuple[int, int | None]]) -> None:
        world = World(Sizing(PLANNED), 3)
        for hours, wish in course:
            world.asked = world.asked if wish is None else wish
            assert 1 <= world.look(hours) <= 8
            world.look()
            assert isinstance(world.asked, int)
            assert 1 <= world.asked <= 8


def test_a_size_that_cannot_be_had_is_brought_back_until_somebody_asks_anew() -> None:
    world = World(Sizing(PLAIN), 2)
    world.look()
    world.asked = 3
    assert world.look() == 3
    world.sizing.order(2)
    assert world.look() == 2 == world.asked
    assert (world.look(), world.note) == (2, None)
    world.asked = 3
    assert (world.look(), world.note) == (3, "3 workers asked for, 2 before")


def test_sizes_to_come_are_those_of_the_plan() -> None:
    assert Sizing(PLAIN).coming(NOON) == ()
    world = World(Sizing(PLANNED), 3)
    world.look()
    tonight, tomorrow = NOON.replace(hour=22), NOON.replace(hour=6) + timedelta(days=1)
    assert world.sizing.coming(world.now)[:2] == ((tonight, 8), (tomorrow, 2))
    world.look(11)
    assert world.sizing.coming(world.now)[0] == (tomorrow, 2)


PAUSE = SizeWish("p", 4, pause=True, by="ada")


def paused(spec: RunSpec = PLAIN) -> World:
    """A run of four workers, which were given up by the launcher."""
    world = World(Sizing(spec), 3)
    world.look()
    world.look()
    world.asked = 4
    world.look()
    world.wish = PAUSE
    assert (world.look(), world.note) == (4, "a pause asked for, 4 workers before")
    assert not world.sizing.write, "workers go when their state is durable, not because of a number"
    world.asked = 0
    return world


class TestAPause:
    def test_lasts_whatever_size_stands_there(self) -> None:
        world = paused()
        for asked in (0, 3, 0, 99):
            world.asked = asked
            world.look()
            assert (world.sizing.pause, world.note, world.sizing.write) == (PAUSE, None, False)

    def test_lasts_while_requests_cannot_be_read(self) -> None:
        world = paused()
        world.wish = None
        world.look()
        assert world.sizing.pause == PAUSE

    def test_asked_for_twice_is_one(self) -> None:
        world = paused()
        world.wish = SizeWish("q", 4, pause=True)
        assert (world.look(), world.note, world.sizing.pause) == (4, None, world.wish)

    @pytest.mark.parametrize("asked", [0, 4])
    def test_ends_with_the_size_before_it_whichever_document_is_seen_first(self, asked: int) -> None:
        world = paused()
        world.asked, world.wish = asked, SizeWish("r", 4, by="ada")
        assert (world.look(), world.note) == (4, "resumed with 4 workers")
        assert world.sizing.pause is None
        assert (world.asked, world.look(), world.note) == (4, 4, None)

    def test_ends_with_a_size_that_is_named_within_the_bounds(self) -> None:
        world = paused()
        world.wish = SizeWish("r", 20)
        assert (world.look(), world.asked) == (8, 8)

    def test_is_known_to_the_next_launcher(self) -> None:
        world = World(Sizing(PLAIN, pause=Pause("p", "ada", 4)), 0)
        world.look()
        assert world.sizing.pause == PAUSE
        world.wish = SizeWish("r", 4)
        assert world.look() == 4 == world.asked

    def test_that_ended_while_no_launcher_ran_is_over(self) -> None:
        world = World(Sizing(PLAIN), 0, wish=SizeWish("r", 5))
        assert (world.look(), world.asked) == (5, 5)

    def test_that_is_refused_is_forgotten_also_by_the_next_launcher(self) -> None:
        world = World(Sizing(PLAIN), 4, wish=PAUSE)
        world.look()
        world.sizing.refuse_pause()
        assert (world.look(), world.sizing.pause) == (4, None)
        following = World(Sizing(PLAIN, pause=Pause("p", "ada", 4, refused="no store")), 4, wish=PAUSE)
        assert (following.look(), following.sizing.pause) == (4, None)
        following.wish = SizeWish("q", 4, pause=True)
        following.look()
        assert following.sizing.pause == following.wish

    def test_is_not_ended_by_a_window_which_counts_when_somebody_ends_it(self) -> None:
        world = paused(PLANNED)
        world.look(11)
        assert world.sizing.pause == PAUSE
        world.wish = SizeWish("r", 4)
        world.look()
        assert world.look() == 8 == world.asked

    def test_gives_way_to_a_size_that_is_named_whatever_window_has_begun(self) -> None:
        world = paused(PLANNED)
        world.look(11)
        world.wish = SizeWish("r", 5)
        world.look()
        assert (world.look(), world.look()) == (5, 5)
