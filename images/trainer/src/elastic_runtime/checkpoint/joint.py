"""One checkpoint that several processes write, each its own parts, all at the same time.

The first of them begins the draft and publishes it. The others bring their parts to it, and last a record of them, for
which the first one waits in the store: it works whatever has become of the world that the writers were in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.checkpoint.manifest import LONGEST_MANIFEST, Part, check_parts
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import StoreUnavailable

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.store import CheckpointStore, Contribution, Draft

T = TypeVar("T")
WRITER_TIMEOUT = 600.0
"""Seconds for which one writer waits for another."""
LOOK = 0.2
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Joint:
    """This process's share in a checkpoint."""

    name: str
    """Name of the checkpoint, the same for all ranks."""
    writer: int
    """From 0; that one publishes."""
    writers: int
    given_up: Event = field(default_factory=Event)
    """Set where a writer is lost: nobody waits for it."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What a writer has brought."""

    parts: tuple[Part, ...]


def bring(store: CheckpointStore, joint: Joint, write: Callable[[Contribution], list[Part]]) -> None:
    """Write the parts of one of the others, and their record.

    Raises:
        StoreUnavailable: also where the first one has not begun, or has given up.
    """
    with _await(lambda: store.join(joint.name), joint, f"{store.uri}: {joint.name} has not been begun") as contribution:
        record = _Record(tuple(write(contribution)))
        with contribution.part(_record(joint.writer)) as stream:
            stream.write(to_json(record).encode())


def await_others(draft: Draft, joint: Joint) -> list[Part]:
    """The parts of all others, once they are written.

    Raises:
        StoreUnavailable: they are not.
        InvalidDocument: what is there is no record.
    """
    found: list[Part] = []
    for writer in range(1, joint.writers):
        problem = f"rank {writer} has not written its part of {joint.name}"
        text = _await(partial(draft.read, _record(writer), LONGEST_MANIFEST), joint, problem)
        record: _Record = from_json(_Record, text)
        check_parts(record.parts)
        found += record.parts
    return found


def _record(writer: int) -> str:
    return f"parts-{writer:05d}.json"


def _await(look: Callable[[], T | None], joint: Joint, problem: str) -> T:
    deadline, given_up = time.monotonic() + WRITER_TIMEOUT, False
    while (found := look()) is None:
        if given_up:
            raise StoreUnavailable(f"{problem}, and its writers are not all there any more")
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"{problem} for {WRITER_TIMEOUT:.0f} s")
        given_up = joint.given_up.wait(LOOK)
    return found
