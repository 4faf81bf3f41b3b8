"""Which lines of a run's log come into the task's: those of some ranks, and always the launcher's own."""

from __future__ import annotations

import re
from collections.abc import Collection

from elastic_runtime.errors import InvalidSettings

_PREFIX = re.compile(r"[0-9TZ:.+-]{1,40} \S{1,300} \[(\d{1,9}|\?)\]<std(?:out|err)>: ")
"""As :mod:`elastic_runtime.launcher.record.output` writes it; it has no prefix of ours before a launcher's own line."""


def ranks_shown(field: str, given: object) -> tuple[int, ...] | None:
    """One rank or several, ascending; None: all; empty: none. Raises InvalidSettings."""
    if given is None:
        return None
    ranks = set()
    for rank in given if isinstance(given, Collection) and not isinstance(given, str) else (given,):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            remedy = "Write [0] for the first rank's lines, [] for none, None for all"
            raise InvalidSettings(field, f"{rank!r} is not a rank", remedy)
        ranks.add(rank)
    return tuple(sorted(ranks))


def is_shown(line: str, ranks: Collection[int] | None) -> bool:
    """Whether a line of the run's log is one of those ranks', or the launcher's.

    A rank that never was in a world has no number; its lines are shown with those of any other.
    """
    if ranks is None or (found := _PREFIX.match(line)) is None:
        return True
    return bool(ranks) if found[1] == "?" else int(found[1]) in ranks
