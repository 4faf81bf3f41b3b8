"""The stores of Google and Azure behind a proxy, for their tests."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.objects.store import ObjectStore
from tests.faulty_proxy import FaultyProxy

PIECE = 256 << 10
"""Bytes: the least that Google takes."""
LARGE = 2 * PIECE + 5
"""Bytes: three pieces, the last a small one."""


@dataclass
class Cloud:
    """One of the two, in front of it a proxy."""

    kind: str
    proxy: FaultyProxy
    uri: str

    def opened(self, credentials: dict[str, str] | None = None) -> ObjectStore:
        opened = open_store(self.uri, credentials)
        assert isinstance(opened, ObjectStore)
        leave_nothing_for_later(opened)
        return opened


def leave_nothing_for_later(store: ObjectStore) -> None:
    """Have it do at once what a thread would do later, so that no test meets a marker that is about to go."""
    store._later.submit = lambda work: work()  # type: ignore[assignment,method-assign,return-value]
