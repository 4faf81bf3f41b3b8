"""A market from any moment of its past on, for as long as a run takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.rehearsal.trace import HOUR, Stay, Trace

MOST_STAYS = 200_000
"""Stays of machines that are looked at for one window."""


def newest(trace: Trace, seconds: float) -> Trace:
    """The last so many seconds of a trace; the whole, if it is not longer."""
    return trace if trace.duration <= seconds else window(trace, trace.duration - seconds, seconds)


def window(trace: Trace, start: float, length: float) -> Trace:
    """Cut a trace out of another, which begins again after its end.

    Machines that are there at the end go on as those that are there at the begin, as many as both have.

    Args:
        trace: the market.
        start: seconds since its begin.
        length: seconds.

    Raises:
        InvalidSettings: the trace is so short that it would be repeated too often.
    """
    begin = start % trace.duration
    laps = (begin + length) / trace.duration
    if (laps + 1) * (len(trace.stays) + len(trace.prices)) > MOST_STAYS:
        problem = f"{trace.name} lasts {trace.duration:g} s, and would be repeated {laps:.0f} times"
        remedy = f"Give a longer one, or less to rehearse than {length / HOUR:.0f} hours"
        raise InvalidSettings("trace", problem, remedy)
    stays = tuple(
        Stay(stay.name, max(stay.begin - begin, 0.0), min(stay.end - begin, length))
        for stay in _repeated(trace, begin + length)
        if stay.end > begin and stay.begin < begin + length
    )
    return replace(trace, stays=stays, duration=length, prices=tuple(_prices(trace, begin, length)))


def _repeated(trace: Trace, until: float) -> list[Stay]:
    """Stays of the trace, lap after lap, in the order of their begin."""
    done: list[Stay] = []
    kept: list[Stay] = []
    """There at the end of the lap before."""
    offset, lap = 0.0, 0
    while offset < until:
        going = iter(kept)
        kept = []
        for stay in trace.stays:
            before = next(going, None) if stay.begin == 0.0 else None
            name, begin = (before.name, before.begin) if before else (_named(stay, lap), offset + stay.begin)
            (kept if stay.end >= trace.duration else done).append(Stay(name, begin, offset + stay.end))
        done += going  # More were there at the end than at the begin.
        offset += trace.duration
        lap += 1
    return sorted((*done, *kept), key=lambda stay: (stay.begin, stay.name))


def _named(stay: Stay, lap: int) -> str:
    return f"{stay.name}~lap{lap}" if lap else stay.name


def _prices(trace: Trace, begin: float, length: float) -> Iterator[tuple[float, Decimal]]:
    if not trace.prices:
        return
    known, changes = trace.prices[0][1], []
    offset = 0.0
    while offset < begin + length:
        for moment, price in trace.prices:
            if offset + moment <= begin:
                known = price
            elif offset + moment < begin + length:
                changes.append((offset + moment - begin, price))
        offset += trace.duration
    yield 0.0, known
    yield from changes
