"""The one object of a run that is ever changed: who may publish, and what is published."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

from elastic_runtime.checkpoint.fence import Seen, known_owner
from elastic_runtime.checkpoint.objects.bucket import Bucket, Changed, Missing
from elastic_runtime.checkpoint.objects.download import in_time
from elastic_runtime.checkpoint.store import NAME
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument, InvalidSettings, StoreUnavailable

_TRIES = 20
_LONGEST = 4 << 20
"""Bytes of a register; some 50,000 names."""
_PAUSE = 0.05
"""Seconds; the n-th pause is drawn between 0 and n times as much."""


class _Condition(TypedDict, total=False):
    """Of a write, as :meth:`Bucket.put` has it."""

    version: str
    new: bool


@dataclass(frozen=True, slots=True)
class Entries:
    """Parsed content of the register: the fence, and which checkpoints are visible."""

    fence: int | None = None
    """The highest fencing token seen."""
    owner: str = ""
    """Run that showed it; empty: not known."""
    published: tuple[str, ...] = ()
    """Names of checkpoints, the earliest first."""

    def claimed(self, fence: int, owner: str, uri: str) -> Entries:
        """Return the entries with this fence. Raise OwnershipLost as :meth:`Seen.claimed` does."""
        seen = Seen(self.fence, known_owner(self.owner)).claimed(fence, owner, uri)
        return replace(self, fence=seen.fence, owner=seen.owner)

    def with_name(self, name: str) -> Entries:
        """Return the entries with this checkpoint published. Does not add a name twice."""
        return self if name in self.published else replace(self, published=(*self.published, name))

    def without(self, name: str) -> Entries:
        """Return the entries without this one."""
        return replace(self, published=tuple(other for other in self.published if other != name))


Version = tuple[Entries, str | None]
"""Entries, and the version of the object that has them; None: there is none."""


class Register:
    """Reads and changes it.

    Args:
        bucket: where.
        key: of the register.
        uri: of the store, for messages.
        found: names of what looks published, for the case that somebody has removed the register.
    """

    def __init__(self, bucket: Bucket, key: str, uri: str, found: Callable[[], list[str]]) -> None:
        self._bucket = bucket
        self._key = key
        self._uri = uri
        self._found = found
        # Whether this server compares versions with their quotes, as RFC 9110 has it; Ceph's gateway does not.
        self._quoted = True

    def read(self) -> Entries:
        """Read the register as it is now."""
        return self.load()[0]

    def change(self, change: Callable[[Entries], Entries], seen: Version | None = None) -> None:
        """Replace the entries by what ``change`` makes of them, with nobody in between; it may be called repeatedly.

        Args:
            change: called with the entries.
            seen: by :meth:`load`, which spares the first read. If somebody has changed it since, it is read again.

        Raises:
            OwnershipLost: ``change`` raised it.
            StoreUnavailable: too many others change it all the time.
        """
        refused: str | None = None
        for attempt in range(1, _TRIES + 1):
            entries, version = seen if seen is not None and attempt == 1 else self.load()
            if version is not None and version == refused:
                self._turn_quotes(entries)
            wanted = change(entries)
            if version is not None and wanted == entries:
                return  # Also when our write was done, but its answer was lost and it was sent again.
            try:
                self._write(wanted, version)
            except Changed:
                refused = version
                time.sleep(random.uniform(0, attempt * _PAUSE))  # noqa: S311  # spreads the tries, hides nothing
            else:
                return
        raise StoreUnavailable(f"{self._uri}: others have changed {self._key} {_TRIES} times in a row")

    def load(self) -> Version:
        """The register as it is now, for a :meth:`change` some time later."""
        what = f"{self._uri}, reading {self._key}"
        try:
            content, version = in_time(partial(self._bucket.get, self._key, _LONGEST), what)
        except Missing:
            return Entries(published=tuple(self._found())), None
        try:
            if len(content) > _LONGEST:
                raise InvalidDocument(f"{self._key} has more than {_LONGEST} bytes")
            entries = from_json(Entries, content)
            return replace(entries, published=tuple(filter(NAME.fullmatch, entries.published))), version
        except InvalidDocument:  # Not ours to judge: what is really published is verified when it is read.
            return Entries(published=tuple(self._found())), version

    def _write(self, entries: Entries, version: str | None) -> None:
        body = to_json(entries).encode()
        if version is not None:
            self._bucket.put(self._key, body, version=self._as_compared(version))
            return
        self._bucket.put(self._key, body, new=True)
        self._prove_conditions(body, {"new": True}, {"version": self._as_compared(self._bucket.no_version)})

    def _as_compared(self, version: str) -> str:
        return version if self._quoted else version.strip('"')

    def _turn_quotes(self, entries: Entries) -> None:
        """Our write was refused, and yet nobody has changed anything: the server compares in the other way."""
        self._quoted = not self._quoted
        self._prove_conditions(to_json(entries).encode(), {"version": self._as_compared(self._bucket.no_version)})

    def _prove_conditions(self, body: bytes, *conditions: _Condition) -> None:
        """Some servers ignore conditions, and with them two owners would write at once.

        Asked of a register that is as ``body``: should a write go through that must not, it changes nothing.
        """
        for condition in conditions:
            try:
                self._bucket.put(self._key, body, **condition)
            except Changed:
                continue
            header = self._bucket.conditions["version" in condition]
            problem = f"the server of {self._uri} ignores {header}, without which no owner is safe from another"
            remedy = "Use one that knows conditional writes, as AWS and today's MinIO do"
            raise InvalidSettings("checkpoint", problem, remedy)
