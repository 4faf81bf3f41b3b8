"""Horovod's timelines of a run's worlds, merged into one trace that Perfetto and chrome://tracing open.

The `Trace Event Format`_ is what both read. Horovod writes event after event, with times since the file's begin, and
tells tensors apart as processes, numbered from 0 in each file. In the merged one, times are microseconds since the
first world began, each world's processes have numbers of their own, and process 0 is the run: its worlds and what
happened between them. A world may have several files, samples of it, which begin and end within operations. A file
whose rank was killed ends anywhere; what can be read of it counts. Pure.

.. _Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

LONGEST_EVENT = 64 * 1024
"""Characters."""
MOST_TORN = 1000
"""Places of one file at which there is no event, after which the rest of it is left out."""
LONGEST_NAME = 200
"""Characters."""
MOST_PROCESSES = 100_000
"""Tensors of one world."""
LATEST = 10.0**15
"""Microseconds since a world's begin: thirty years."""
LIMIT = 512 * 1024 * 1024
"""Bytes of a merged trace; Perfetto opens about a gigabyte."""
MARK_TIME = 30.0
"""Seconds that the launcher and rank 0 may disagree on when a world began."""
_PHASES = ("B", "E", "X", "i", "I", "M")
_BEGIN = re.compile(r"\{")
_RUN = 0
"""The process that stands for the run."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the run's status tells."""

    time: float
    """Seconds since 1970 (UTC)."""
    name: str
    generation: int = 0
    """Generation of the world that began then. 0: none."""
    size: int = 0
    """Ranks of that world."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of the timeline that rank 0 of one world wrote: all of it, or a sample."""

    begin: int
    """When the world began, in microseconds since 1970 (UTC)."""
    size: int
    """Ranks of the world."""
    chunks: Iterable[bytes]
    """Chunks of the file, in order."""


@dataclass(slots=True)
class Merged:
    """Counts of a merge of timelines."""

    events: int = 0
    left_out: int = 0
    """Places that cannot be read as events: the torn end of a file, or nonsense."""
    full: bool = False
    """There was more than :data:`LIMIT`."""


@dataclass(slots=True)
class _World:
    base: int
    """The first number of its processes."""
    shift: float
    """Added to its times."""
    name: str
    last: float = 0.0
    numbers: dict[str | int, int] = field(default_factory=dict)
    """Of its processes, by the tensor's name, or by the number in the file where there is none."""
    here: dict[int, int] = field(default_factory=dict)
    """The same, by the number in the present file."""
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    """Events that have begun and not ended, by process and thread."""

    def number(self, process: int, name: str | None = None) -> int | None:
        """A process of the present file, as one of the run's. None: there are too many."""
        known = None if name else self.here.get(process)
        if known is None and (len(self.numbers) < MOST_PROCESSES or (name or process) in self.numbers):
            known = self.here[process] = self.numbers.setdefault(name or process, self.base + len(self.numbers))
        return known


def merge(
    pieces: Iterable[Piece], marks: Sequence[Mark], write: Callable[[bytes], object], limit: int = LIMIT
) -> Merged:
    """Write one JSON document, event by event; no more than one and a chunk are held in memory.

    Args:
        pieces: in the order of their begins.
        marks: of the status.
        write: takes the bytes of the document in order.
        limit: bytes after which what is left is left out.
    """
    done, written, zero, base = Merged(), 0, 0, _RUN + 1

    def put(*events: Mapping[str, Any]) -> None:
        nonlocal written
        for event in events:
            line = (b",\n" if done.events else b"") + json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
            write(line)
            written += len(line)
            done.events += 1

    write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    put({"ph": "M", "pid": _RUN, "name": "process_name", "args": {"name": "run"}})
    put({"ph": "M", "pid": _RUN, "name": "process_sort_index", "args": {"sort_index": _RUN}})
    for number, ((begin, size), samples) in enumerate(groupby(pieces, lambda piece: (piece.begin, piece.size)), 1):
        zero = zero or begin
        world = _World(base, max(0.0, float(begin - zero)), _called(begin, size, marks, number))
        for piece in samples:
            for event in _events(piece.chunks, world, done):
                if written > limit:
                    done.full = True
                    break
                put(event)
            put(*_ends(world))
        put(_span(world))
        base += len(world.numbers)
    put(*_happened(marks, zero))
    write(b"\n]}\n")
    return done


def _happened(marks: Sequence[Mark], zero: int) -> Iterator[dict[str, Any]]:
    for mark in marks:
        if zero and not mark.generation:
            at = max(0.0, mark.time * 1e6 - zero)
            yield {"ph": "i", "s": "g", "pid": _RUN, "tid": 1, "ts": at, "name": mark.name[:LONGEST_NAME]}


def _called(begin: int, size: int, marks: Sequence[Mark], number: int) -> str:
    began = begin / 1e6
    worlds = [mark for mark in marks if mark.generation and mark.size == size]
    nearest = min(worlds, key=lambda mark: abs(mark.time - began), default=None)
    known = nearest is not None and abs(nearest.time - began) <= MARK_TIME
    return f"world {nearest.generation if nearest and known else number} of {size} ranks"


def _span(world: _World) -> dict[str, Any]:
    duration = max(0.0, world.last - world.shift)
    return {"ph": "X", "pid": _RUN, "tid": 0, "ts": world.shift, "dur": duration, "name": world.name}


def _ends(world: _World) -> Iterator[dict[str, Any]]:
    """Of what had begun when the file ends; or it would last to the end of the trace."""
    for (process, thread), depth in world.open.items():
        for _ in range(depth):
            yield {"ph": "E", "pid": process, "tid": thread, "ts": world.last}
    world.here.clear()
    world.open.clear()


def _events(chunks: Iterable[bytes], world: _World, done: Merged) -> Iterator[dict[str, Any]]:
    torn = 0
    for found in _objects(chunks):
        event = None if found is None else _event(found, world)
        if event is not None:
            yield event
            continue
        if isinstance(found, dict) and found.get("ph") in ("E", "M"):
            continue  # The end of what had begun before the file, or what is said of the whole file.
        done.left_out += 1
        torn += 1
        if torn >= MOST_TORN:
            return


def _objects(chunks: Iterable[bytes]) -> Iterator[object]:
    """What is between the commas; None for each place at which there is nothing that can be read."""
    decoder, decode = codecs.getincrementaldecoder("utf-8")(errors="replace"), json.JSONDecoder().raw_decode
    text, at = "", 0
    for chunk in chain(chunks, [b""]):
        text, at = text[at:] + decoder.decode(chunk, final=not chunk), 0
        while found := _BEGIN.search(text, at):
            at = found.start()
            try:
                value, at = decode(text, at)
            except (ValueError, RecursionError):
                if chunk and len(text) - at < LONGEST_EVENT:
                    break  # There may be more of it.
                at += 1
                yield None
            else:
                yield value
        else:
            at = len(text)


def _event(found: object, world: _World) -> dict[str, Any] | None:
    """One of the world's as one of the run's; None for what is none."""
    if not isinstance(found, dict) or found.get("ph") not in _PHASES:
        return None
    phase, process, thread = found["ph"], found.get("pid", 0), found.get("tid", 0)
    if not (_whole(process) and _whole(thread)):
        return None
    arguments, name = found.get("args"), found.get("name")
    if phase == "M":
        return _metadata(name, arguments, process, world)
    if not _number(found.get("ts")) or (number := world.number(process)) is None:
        return None
    event: dict[str, Any] = {"ph": phase, "pid": number, "tid": thread}
    if isinstance(name, str):
        event["name"] = name[:LONGEST_NAME]
    if phase == "X":
        if not _number(found.get("dur")):
            return None
        event["dur"] = found["dur"]
    event["ts"] = world.shift + found["ts"]
    world.last = max(world.last, event["ts"] + event.get("dur", 0.0))
    if isinstance(arguments, dict):
        event["args"] = {str(key)[:LONGEST_NAME]: str(value)[:LONGEST_NAME] for key, value in arguments.items()}
    return event if phase not in "BE" or _nested(event, world) else None


def _nested(event: Mapping[str, Any], world: _World) -> bool:
    """Whether this begin or end can be one: an end has its begin."""
    where = event["pid"], event["tid"]
    depth = world.open.get(where, 0) + (1 if event["ph"] == "B" else -1)
    if depth < 0 or (where not in world.open and len(world.open) >= MOST_PROCESSES):
        return False
    world.open[where] = depth
    return True


def _metadata(kind: object, arguments: Any, process: int, world: _World) -> dict[str, Any] | None:
    if not isinstance(arguments, dict):
        return None
    name = arguments.get("name") if kind == "process_name" else None
    named = name[:LONGEST_NAME] if isinstance(name, str) else None
    if named is None and kind != "process_sort_index":
        return None
    number = world.number(process, named)
    if number is None:
        return None
    told = {"sort_index": number} if named is None else {"name": f"{world.name} · {named}"[:LONGEST_NAME]}
    return {"ph": "M", "pid": number, "name": kind, "args": told}


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_PROCESSES


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LATEST  # NaN is not
