"""Virtual time: what happens when, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


@dataclass(order=True, slots=True)
class Event:
    """Something that will happen, unless cancelled. Of two at the same time, the one made first comes first."""

    at: float
    number: int
    happen: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """It will not happen."""
        self.cancelled = True


class Timeline:
    """Seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[Event] = []
        self._numbers = count()
        self._stopped = False

    def at(self, moment: float, happen: Callable[[], None]) -> Event:
        """Have it happen then, or now if that is past."""
        event = Event(max(moment, self.now), next(self._numbers), happen)
        heapq.heappush(self._events, event)
        return event

    def after(self, seconds: float, happen: Callable[[], None]) -> Event:
        """Have it happen in so many seconds."""
        return self.at(self.now + seconds, happen)

    def stop(self) -> None:
        """What is still to happen does not."""
        self._stopped = True

    def run(self, end: float, *, passes: Callable[[float], None], happened: Callable[[], None]) -> None:
        """To the end, exclusive: what would happen at that moment does not.

        Args:
            end: seconds.
            passes: called with the seconds that pass, before the clock shows it.
            happened: called after what happens at one moment.
        """
        while (event := self._next()) is not None and event.at < end:
            self._pass_until(event.at, passes)
            while event is not None and event.at <= self.now and not self._is_over():
                heapq.heappop(self._events).happen()
                event = self._next()
            if self._is_over():
                return
            happened()
            if self._is_over():
                return
        self._pass_until(end, passes)

    def _is_over(self) -> bool:
        return self._stopped

    def _next(self) -> Event | None:
        while self._events and self._events[0].cancelled:
            heapq.heappop(self._events)
        return self._events[0] if self._events else None

    def _pass_until(self, moment: float, passes: Callable[[float], None]) -> None:
        if moment > self.now:
            passes(moment - self.now)
            self.now = moment
