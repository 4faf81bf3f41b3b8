"""Reads traces from files, which anybody may have written: bounded, and every line checked.

================  ==================================================================================================
``NAME.csv``      One change a line, in the order of time: ``milliseconds,add|remove,node``, or
                  ``milliseconds,price,dollars`` for the price of a machine and hour from then on. Lines that begin
                  with ``#`` are comments. It lasts from its first to its last line; what is removed in that last
                  moment is the end of what was recorded, and no loss.
``NAME.json``     ``{"metadata": {"gap_seconds": 300}, "data": [4, 4, 3]}``: how many machines are there, every so
                  many seconds. It may have ``"prices": [0.25, 0.25, 0.3]``, of the same length. Which machine goes when
                  there are fewer is drawn by the file's name, the same every time.
================  ==================================================================================================

Times before the first change do not count, so they may be seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.rehearsal.trace import DAY, Stay, Trace

SHIPPED = Path(__file__).resolve().parent / "markets"
"""Traces that ship: made up by this project, none is recorded (benchmarks/traces/made.py)."""
LARGEST = 4 * 1024 * 1024
"""Bytes of a file."""
MOST_CHANGES = 100_000
MOST_MACHINES = 1000
"""At once."""
LONGEST = 366 * DAY
"""Seconds from the first change to the last."""
_LONGEST_NAME = 100
"""Characters of a machine's name."""
_LONGEST_NUMBER = 20
"""Characters: milliseconds since 1970 have 13."""
_MOST_DOLLARS = Decimal(100_000)
_SHOWN = 80


class _Kind(StrEnum):
    ADD = "add"
    REMOVE = "remove"
    PRICE = "price"


def shipped() -> Sequence[str]:
    """Names of the traces that ship."""
    return sorted(path.stem for path in SHIPPED.glob("*.csv"))


def read_trace(path: Path) -> Trace:
    """Read a file.

    Raises:
        InvalidDocument: it is no trace, or larger than :data:`LARGEST`.
    """
    name = printable(path)
    try:
        if not path.is_file():  # A pipe would be waited for.
            raise InvalidDocument(f"{name}: cannot be read as a trace: the file does not exist")
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        text = raw.decode()
    except (OSError, ValueError) as error:
        raise InvalidDocument(f"{name}: cannot be read as a trace: {printable(error)}") from error
    if len(raw) > LARGEST:
        raise InvalidDocument(f"{name}: is larger than {LARGEST} bytes; cut it into several traces")
    parse = parse_counts if path.suffix == ".json" else parse_trace
    return parse(printable(path.stem, _LONGEST_NAME), text)


def parse_trace(name: str, text: str) -> Trace:
    """Read a trace from CSV; its time begins with the first change.

    Raises:
        InvalidDocument: it is none; says which line is wrong.
    """
    made = _Making(name)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            made.where = f"line {number}: {printable(repr(line), _SHOWN)}"
            moment, kind, value = _change(made, line)
            made.pass_until(moment)
            if kind is _Kind.ADD:
                made.add(value)
            elif kind is _Kind.REMOVE:
                made.remove(value)
            else:
                made.price(value)
    return made.trace()


def parse_counts(name: str, text: str) -> Trace:
    """Read a trace from JSON.

    Raises:
        InvalidDocument: it is none; says what is wrong.
    """
    gap, counts, prices = _counts(name, text)
    made, draw = _Making(name), Random(name)  # noqa: S311  # no secret
    present: list[str] = []
    for index, count in enumerate(counts):
        made.where = f"data[{index}]"
        made.pass_until(index * gap)
        if prices:
            made.price(str(prices[index]))
        while len(present) > count:
            made.remove(present.pop(draw.randrange(len(present))))
        while len(present) < count:
            present.append(f"machine{made.changes}")
            made.add(present[-1])
    made.pass_until(len(counts) * gap)
    return made.trace()


@dataclass(slots=True)
class _Making:
    """A trace, change by change. Each method raises InvalidDocument."""

    name: str
    where: str = ""
    """For messages: of the change."""
    changes: int = 0
    _first: float | None = None
    _now: float = 0.0
    _present: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Unique name and begin by the machine's own name."""
    _seen: dict[str, int] = field(default_factory=dict)
    _stays: list[Stay] = field(default_factory=list)
    _prices: list[tuple[float, Decimal]] = field(default_factory=list)

    def wrong(self, problem: str) -> InvalidDocument:
        where = f", {self.where}" if self.where else ":"
        return InvalidDocument(f"trace {self.name}{where} {problem}")

    def pass_until(self, moment: float) -> None:
        if self._first is None:
            self._first = moment
        if moment - self._first < self._now:
            raise self.wrong("is earlier than the line before; sort them")
        self._now = moment - self._first
        if self._now > LONGEST:
            raise self.wrong(f"is more than {LONGEST / DAY:g} days after the first")

    def add(self, machine: str) -> None:
        self._count()
        if machine in self._present:
            raise self.wrong(f"cannot be: {printable(machine, _SHOWN)} is there already")
        if len(self._present) == MOST_MACHINES:
            raise self.wrong(f"makes more than {MOST_MACHINES} machines at once")
        self._seen[machine] = times = self._seen.get(machine, 0) + 1
        self._present[machine] = (machine if times == 1 else f"{machine}~{times}", self._now)

    def remove(self, machine: str) -> None:
        self._count()
        if machine not in self._present:
            raise self.wrong(f"cannot be: {printable(machine, _SHOWN)} is not there")
        unique, begin = self._present.pop(machine)
        if begin < self._now:  # Nothing can happen on one that goes in the moment in which it comes.
            self._stays.append(Stay(unique, begin, self._now))

    def price(self, dollars: str) -> None:
        self._count()
        try:
            price = Decimal(dollars)
        except InvalidOperation:
            price = Decimal(0)
        if not price.is_finite() or not 0 < price <= _MOST_DOLLARS or len(price.as_tuple().digits) > _LONGEST_NUMBER:
            raise self.wrong(f"has no price, above 0 and at most {_MOST_DOLLARS} dollars an hour")
        if not self._prices or self._prices[-1][1] != price:
            self._prices.append((self._now if self._prices else 0.0, price))

    def trace(self) -> Trace:
        if not self._now:
            self.where = ""
            raise self.wrong("it has no two changes at different times, so there is nothing to replay")
        ends = [Stay(unique, begin, self._now) for unique, begin in self._present.values() if begin < self._now]
        stays = sorted((*self._stays, *ends), key=lambda stay: (stay.begin, stay.name))
        if not stays:
            self.where = ""
            raise self.wrong("it has no machine for any time")
        return Trace(self.name, tuple(stays), self._now, tuple(self._prices))

    def _count(self) -> None:
        self.changes += 1
        if self.changes > MOST_CHANGES:
            raise self.wrong(f"is one more than {MOST_CHANGES} changes; cut it into several traces")


def _change(made: _Making, line: str) -> tuple[float, _Kind, str]:
    try:
        milliseconds, kind, value = (field.strip() for field in line.split(","))
        if len(milliseconds) > _LONGEST_NUMBER or not 0 < len(value) <= _LONGEST_NAME:
            raise ValueError("a field is empty or too long")
        return int(milliseconds) / 1000, _Kind(kind), value
    except ValueError as error:
        raise made.wrong("is not 'milliseconds,add|remove,node' or 'milliseconds,price,dollars'") from error


def _counts(name: str, text: str) -> tuple[float, list[int], list[Any]]:
    """Seconds between two of the counts, these, and as many prices or none. Raises InvalidDocument."""
    whole = parse_json(text)
    metadata = whole.get("metadata") if isinstance(whole, dict) else None
    if not isinstance(whole, dict) or not isinstance(metadata, dict):
        raise InvalidDocument(f'trace {name}: write {{"metadata": {{"gap_seconds": 300}}, "data": [4, 4, 3]}}')
    gap, counts, prices = metadata.get("gap_seconds"), whole.get("data"), whole.get("prices", [])
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 < gap <= DAY:
        raise InvalidDocument(f"trace {name}: metadata.gap_seconds is not a number of seconds, at most {DAY:g}")
    if not isinstance(counts, list) or not 0 < len(counts) <= MOST_CHANGES:
        raise InvalidDocument(f"trace {name}: data is not a list of 1 to {MOST_CHANGES} numbers of machines")
    if wrong := [each for each in counts if type(each) is not int or not 0 <= each <= MOST_MACHINES]:
        shown = printable(repr(wrong[0]), _SHOWN)
        raise InvalidDocument(f"trace {name}: {shown} in data is not a number of machines, 0 to {MOST_MACHINES}")
    if not isinstance(prices, list) or len(prices) not in (0, len(counts)):
        raise InvalidDocument(f"trace {name}: prices is not a list of {len(counts)} prices, one for each of data")
    return float(gap), counts, prices
