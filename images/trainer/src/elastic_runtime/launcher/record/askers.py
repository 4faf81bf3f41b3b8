"""Requests for sizes and pauses: Airflow's side notes each before it sets the size, by whichever way. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.decision.sizing import SizeWish
from elastic_runtime.printable import printable

MOST = 300
"""Characters of who has asked that are told."""
LONGEST_REQUEST = 1000
"""Characters of a request's name that are kept: it has the ids of a task, of 250 each."""


class Askers:
    """Remembers which requests it has seen: a size that is set by hand is nobody's, whoever asked for it before."""

    def __init__(self) -> None:
        self._seen: frozenset[str] = frozenset()
        self._read: tuple[str | None, SizeWish | None] = (None, None)

    def newest(self, requests: str | None) -> SizeWish | None:
        """Return the newest of the requests, as :meth:`who` is given them. None: none is known."""
        if requests != self._read[0]:
            self._read = (requests, _wish(requests))
        return self._read[1]

    def who(self, requests: str | None, workers: int | str | None) -> str:
        """Who has asked for this size since the last call; empty: it is not known.

        Args:
            requests: JSON list of the newest, the oldest first, as the place keeps them; None: there are none.
            workers: the size that stands there now.
        """
        known = _by_name(requests)
        new = [each for name, each in known.items() if name not in self._seen]
        self._seen = frozenset(known)
        found = next((each.get("by") for each in reversed(new) if each.get("workers") == workers), None)
        return printable(found, MOST) if isinstance(found, str) else ""


def _by_name(requests: str | None) -> dict[str, Mapping[str, object]]:
    """By name; what somebody else has written, is nobody's."""
    try:
        plain = parse_json(requests) if requests else []
    except InvalidDocument:
        return {}
    given = plain if isinstance(plain, list) else []
    return {str(each["name"]): each for each in given if isinstance(each, dict) and "name" in each}


def _wish(requests: str | None) -> SizeWish | None:
    known = list(_by_name(requests).items())
    if not known:
        return None
    name, newest = known[-1]
    workers, by = newest.get("workers"), newest.get("by")
    return SizeWish(
        printable(name, LONGEST_REQUEST),
        workers if isinstance(workers, int) else 0,
        newest.get("pause") is True,
        printable(by, MOST) if isinstance(by, str) else "",
    )
