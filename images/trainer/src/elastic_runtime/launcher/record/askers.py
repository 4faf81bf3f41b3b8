"""Who has asked for a size: Airflow's side notes each request before it sets the size, by whichever way. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable

MOST = 300
"""Characters of a name that are told."""


class Askers:
    """Remembers which requests it has seen: a size that is set by hand is nobody's, whoever asked for it before."""

    def __init__(self) -> None:
        self._seen: frozenset[str] = frozenset()

    def who(self, requests: str | None, workers: int | str | None) -> str:
        """Who has asked for this size since the last call; empty: it is not known.

        Args:
            requests: JSON list of the newest, the oldest first, as the place keeps them; None: there are none.
            workers: the size that stands there now.
        """
        known = _read(requests)
        new = [each for name, each in known.items() if name not in self._seen]
        self._seen = frozenset(known)
        found = next((each.get("by") for each in reversed(new) if each.get("workers") == workers), None)
        return printable(found, MOST) if isinstance(found, str) else ""


def _read(requests: str | None) -> dict[str, Mapping[str, object]]:
    """By name; what somebody else has written, is nobody's."""
    try:
        plain = parse_json(requests) if requests else []
    except InvalidDocument:
        return {}
    given = plain if isinstance(plain, list) else []
    return {str(each["name"]): each for each in given if isinstance(each, dict) and "name" in each}
