"""The word of how far a training is, not too often."""

from __future__ import annotations

from collections.abc import Callable

from elastic_runtime.protocol.rank_link import Progress, RankLink

PAUSE = 0.25
"""Seconds between two words of progress to the agent."""


class ProgressLine:
    """Rank 0's.

    Args:
        link: to the agent.
        clock: monotonic seconds.
    """

    def __init__(self, link: RankLink, clock: Callable[[], float]) -> None:
        self._link, self._clock = link, clock
        self._sent: tuple[float, int] | None = None

    def tell(self, step: int, *, last: bool) -> None:
        """The step of the last commit; the last one in any case."""
        now = self._clock()
        if self._sent is not None:
            then, told = self._sent
            if step == told or not (last or now - then >= PAUSE):
                return
        self._sent = (now, step)
        self._link.send(Progress(step=step))
