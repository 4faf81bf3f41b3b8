"""Seats for connections of which it is not known yet whose they are."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Seats(Generic[T]):
    """So many, and whoever comes always gets one.

    The one that has sat longest goes for it, of the address that has the most: one address cannot keep another out,
    and on one address a flood must fill all seats in the milliseconds that a rightful guest needs.

    Args:
        seats: how many.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._sitting: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sitting.values()))

    def take(self, address: str, guest: T) -> T | None:
        """Seat it until it leaves. Returns the one that has to go for it, if there is one, which has left by then."""
        self._sitting.setdefault(address, {})[guest] = None
        if len(self) <= self._seats:
            return None
        most = max(self._sitting, key=lambda each: len(self._sitting[each]))
        oldest = next(iter(self._sitting[most]))
        self.leave(most, oldest)
        return oldest

    def leave(self, address: str, guest: T) -> None:
        """It has said who it is, or has gone. Idempotent."""
        if (sitting := self._sitting.get(address)) is not None:
            sitting.pop(guest, None)
            if not sitting:
                del self._sitting[address]
