"""How ranks ended that were asked to: by the signal itself, at the end of their time, or telling where they stood.

What the pool of workers notes here, the launcher tells, once all that were asked have ended.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic_runtime.printable import printable

MOST_NAMED = 6
"""Ranks that are named in an event."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A rank that was asked to end."""

    rank_id: str
    worker: str
    asked: float
    """When."""
    grace: float
    """Seconds that it had."""
    interrupt: int = 0
    """Signal that asked it for its checkpoint; 0: it was to end for good."""
    stacks: bool = False
    """It was to write first where it stands: others have waited for it."""
    code: int | None = None
    """Exit code of the rank."""
    seconds: float = 0.0
    """From then to its end."""

    @property
    def unhandled(self) -> bool:
        """Whether the signal that was to ask it has ended it."""
        return bool(self.interrupt) and self.code == -self.interrupt

    @property
    def overdue(self) -> bool:
        """Whether it had to be killed."""
        return self.code == -signal.SIGKILL and 0 < self.grace <= self.seconds


class Stops:
    """Record how ranks ended after they were asked to. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._asked: dict[str, Stopped] = {}
        self._ended: list[Stopped] = []

    def asked(self, process: str, stopped: Stopped) -> None:
        """That process was asked to end; what it was asked last counts."""
        self._asked[process] = stopped

    def ended(self, process: str, code: int, now: float) -> None:
        """A process has ended, asked or not."""
        if stopped := self._asked.pop(process, None):
            self._ended.append(replace(stopped, code=code, seconds=now - stopped.asked))

    def take(self) -> list[Stopped]:
        """Those that have ended since the last call; none while others still have time."""
        if self._asked:
            return []
        ended, self._ended = self._ended, []
        return ended


def overdue_message(stopped: Sequence[Stopped]) -> str | None:
    """Describe ranks that were killed at the end of their time. None: none was."""
    late = [each for each in stopped if each.overdue]
    if not late:
        return None
    by = signal.Signals(late[0].interrupt or signal.SIGTERM).name
    what = "; what it had not saved is lost: give it more time (Restart(grace=...)), or save more often"
    return (
        f"{_named(late)} did not end within {late[0].grace:g} s of {by} and {_was(late)} killed"
        f"{what if late[0].interrupt else ''}"
    )


def unhandled_message(stopped: Sequence[Stopped]) -> str | None:
    """Describe ranks without a handler for the signal that asks for a checkpoint. None: all have one."""
    ended = [each for each in stopped if each.unhandled]
    if not ended:
        return None
    name = signal.Signals(ended[0].interrupt).name
    others = [each for each in stopped if each.interrupt and not each.unhandled and not each.overdue]
    rest = f"; {_named(others)} ended by {'itself' if len(others) == 1 else 'themselves'}" if others else ""
    return (
        f"{name} itself ended {_named(ended)}{rest}: a script without a handler for it saves nothing when the workers "
        "change, and does again what came after its own newest checkpoint, or all"
    )


def _named(stopped: Sequence[Stopped]) -> str:
    names = [printable(each.rank_id) for each in stopped[:MOST_NAMED]]
    more = f" and {len(stopped) - MOST_NAMED} more" if len(stopped) > MOST_NAMED else ""
    return f"{'rank' if len(stopped) == 1 else 'ranks'} {', '.join(names)}{more}"


def _was(stopped: Sequence[Stopped]) -> str:
    return "was" if len(stopped) == 1 else "were"
