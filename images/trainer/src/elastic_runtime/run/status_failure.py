"""Rank that failed first, in a status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MAX_TRACEBACK = 6000
"""Characters of :attr:`FirstFailure.traceback`."""
FAILED_FIRST = " failed first: "
"""In a reason, before what that rank said."""
LAST_WORDS = "; last words on stderr: "
"""In a reason, before what some rank said."""
END_OF_LOG = "; the end of its log: "
"""In a reason or a diagnosis, before what may be lines of a launcher's or a worker's log; nothing of ours follows."""
CANNOT_RUN = "the launcher cannot run: "
"""In a reason, before the last words of a launcher that refuses its run."""


def without_quotes(reason: str) -> str:
    """A reason up to where it quotes a rank or a log: for those who may not read the log."""
    for words in (FAILED_FIRST, LAST_WORDS, END_OF_LOG, CANNOT_RUN):
        before, found, _ = reason.partition(words)
        reason = before + found.rstrip(": ") if words in (FAILED_FIRST, CANNOT_RUN) else before
    return reason


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The rank that failed by itself, for whose sake the others of its world failed."""

    rank: int | None
    """In the last world that was complete, or was forming; None: it was in none."""
    worker: str
    """Its name; on Kubernetes that of its pod, or with ``.rN`` behind it."""
    rank_id: str
    step: int | None
    """Newest global step that the launcher had heard of; None: of none."""
    exit_code: int
    """Minus a signal's number."""
    time: datetime
    """Time of its end."""
    message: str
    """One line: ``ValueError: no such sample``, its last line on stderr, or how it ended."""
    traceback: str = ""
    """Last lines on stderr, from the traceback on if there is one, with line ends; its end, if it is longer
    than :data:`MAX_TRACEBACK` characters."""

    @property
    def who(self) -> str:
        """Rank and worker that failed, as in ``rank 1 on worker-0``."""
        return f"{'a rank' if self.rank is None else f'rank {self.rank}'} on {self.worker}"

    @property
    def summary(self) -> str:
        """One line for messages: which rank failed, and with what error."""
        return f"{self.who}{FAILED_FIRST}{self.message}"
