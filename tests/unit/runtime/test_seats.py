"""Seats for connections of strangers."""

from elastic_runtime.net.seats import Seats


def test_the_oldest_of_the_busiest_address_goes() -> None:
    seats = Seats[str](3)
    assert [seats.take("a", "a1"), seats.take("b", "b1"), seats.take("b", "b2")] == [None, None, None]
    assert seats.take("a", "a2") == "a1", "the newcomer counts"
    assert seats.take("b", "b3") == "b1"
    assert len(seats) == 3


def test_who_has_left_has_no_seat() -> None:
    seats = Seats[str](1)
    seats.take("a", "a1")
    seats.leave("a", "a1")
    seats.leave("a", "a1")
    assert seats.take("b", "b1") is None
