"""A trace: machines that come and go. CSV, one change a line: ``milliseconds,add|remove,node``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from elastic_runtime.errors import InvalidDocument, InvalidSettings

HOUR = 3600.0


class _Kind(StrEnum):
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Stay:
    """One machine, from when it is there to when it is not."""

    name: str
    """Of the machine; ``node~2`` for the second stay of ``node``."""
    begin: float
    """Seconds since the trace's begin."""
    end: float
    """The same; the trace's end where nobody took the machine before."""


@dataclass(frozen=True, slots=True)
class Trace:
    """From the first change to the last.

    A removal at the very end is the end of what was recorded, and not a loss.
    """

    name: str
    stays: tuple[Stay, ...]
    """In the order of their begin."""
    duration: float
    """Seconds."""

    @property
    def losses(self) -> tuple[Stay, ...]:
        """Of machines that were taken before the end."""
        return tuple(stay for stay in self.stays if stay.end < self.duration)

    @property
    def node_seconds(self) -> float:
        """Of all machines together."""
        return sum(stay.end - stay.begin for stay in self.stays)

    @property
    def losses_per_node_hour(self) -> float:
        """How stormy it is."""
        return len(self.losses) / (self.node_seconds / HOUR)

    def levels(self) -> list[tuple[float, int]]:
        """How many machines there are from which moment on; begins at 0, one entry a moment."""
        changes: dict[float, int] = {}
        for stay in self.stays:
            changes[stay.begin] = changes.get(stay.begin, 0) + 1
            changes[stay.end] = changes.get(stay.end, 0) - 1
        count, levels = 0, []
        for moment in sorted(changes):
            count += changes[moment]
            levels.append((moment, count))
        return levels

    @property
    def peak(self) -> int:
        """Most machines at once."""
        return max(count for _, count in self.levels())


@dataclass(frozen=True, slots=True)
class Notices:
    """Which losses are announced, and how those that are not come to light."""

    share: float = 1.0
    """Of the losses that are announced, 0 to 1."""
    deadline: float = 120.0
    """Seconds from notice to loss: 120 on AWS, 30 on GCP (of which pods get 15) and Azure."""
    silent: bool = False
    """Whether machines that go without a notice do so without closing their connections, as at a power failure."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidSettings("notices.share", f"{self.share} is no share", "Write a number from 0 to 1")
        if self.deadline < 0:
            raise InvalidSettings("notices.deadline", f"{self.deadline} is in the past", "Write 0 or more seconds")

    def moment(self, stay: Stay, trace: Trace) -> float | None:
        """When word comes that the machine will be taken; None when none does. The same for every policy."""
        announced = Random(f"{self.seed}/{stay.name}").random() < self.share  # noqa: S311  # no secret
        if stay.end >= trace.duration or not announced:
            return None
        return max(stay.begin, stay.end - self.deadline)


def read_trace(path: Path) -> Trace:
    """Read a file.

    Raises:
        InvalidDocument: it is no trace.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument(f"{path}: cannot be read as a trace: {error}") from error
    return parse_trace(path.stem, text)


def parse_trace(name: str, text: str) -> Trace:
    """Read a trace; its time begins with the first change.

    Raises:
        InvalidDocument: it is none; says which line is wrong.
    """
    present: dict[str, tuple[str, float]] = {}
    stays: list[Stay] = []
    seen: dict[str, int] = {}
    first = last = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        moment, kind, node = _change(name, number, line)
        first = moment if first is None else first
        if moment < (last or first):
            raise InvalidDocument(f"trace {name}, line {number}: {line!r} is earlier than the line before; sort them")
        last = moment
        if kind is _Kind.ADD and node not in present:
            seen[node] = seen.get(node, 0) + 1
            present[node] = (node if seen[node] == 1 else f"{node}~{seen[node]}", moment)
        elif kind is _Kind.REMOVE and node in present:
            unique, begin = present.pop(node)
            stays.append(Stay(unique, begin - first, moment - first))
        else:
            there = "is there already" if kind is _Kind.ADD else "is not there"
            raise InvalidDocument(f"trace {name}, line {number}: {line!r}, but {node} {there}")
    if first is None or last is None or last <= first:
        raise InvalidDocument(f"trace {name}: it has no two changes at different times, so there is nothing to replay")
    stays += [Stay(unique, begin - first, last - first) for unique, begin in present.values()]
    return Trace(name, tuple(sorted(stays, key=lambda stay: (stay.begin, stay.name))), last - first)


def _change(name: str, number: int, line: str) -> tuple[float, _Kind, str]:
    try:
        milliseconds, kind, node = (field.strip() for field in line.split(","))
        return int(milliseconds) / 1000, _Kind(kind), node
    except ValueError as error:
        expected = "milliseconds,add|remove,node"
        raise InvalidDocument(f"trace {name}, line {number}: {line!r} is not {expected!r}") from error


def trace_text(stays: Iterable[Stay], duration: float) -> str:
    """As CSV; machines that stay are removed at the end, so that it is known when that is."""
    changes = [(stay.begin, 1, stay.name) for stay in stays if stay.begin < duration]
    changes += [(min(stay.end, duration), 0, stay.name) for stay in stays if stay.begin < duration]
    # Of changes at one time, removals come first: fewer machines are there at once.
    return "".join(f"{round(at * 1000)},{('remove', 'add')[kind]},{name}\n" for at, kind, name in sorted(changes))
