"""Whether a standstill was found and healed: pure, from the ranks' notes, the run's status and its log."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.run.status import EventKind, Status
from tests.chaos.account import whole_steps

FAILS = ("dead-loader", "breakpoint")
"""Ways to stand still with which a rank fails by itself."""
GOES_ON = ("store",)
"""Ways with which the training goes on."""
ALARMS = (EventKind.STANDSTILL, EventKind.RANKS_DIFFER, EventKind.STRAGGLER)
"""Events that blame a rank or a worker."""
_NAMED = re.compile(r"rank \d+ \([\w.-]+\)")
_FAILED = re.compile(r"(?:^|rank_failed: )rank ([\w.-]+) ended with (?!code 0)")
_REPLACED = re.compile(r"; (?:(?:it is|they are) replaced|all ranks start again)")


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is known of a round that is over."""

    notes: Sequence[Mapping[str, Any]]
    """Of all ranks, each with its ``pid``."""
    status: Status
    """All that the page shows."""
    log: str

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """Return the notes of steps."""
        return [note for note in self.notes if "step" in note]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a standstill."""

    seconds: float | None
    """From its begin to the first whole step after it. None: there was none."""
    troubles: tuple[str, ...] = ()


def find(way: str, bound: float, seen: Seen, *, restarts: bool = False) -> Found:
    """Judge a round.

    Args:
        way: how a rank stood still.
        bound: seconds in which the training has to go on.
        seen: the round.
        restarts: all ranks start again, instead of going on in place.
    """
    stood = next((note for note in seen.notes if "stood" in note), None)
    if stood is None:
        return Found(None, ("no rank stood still",))
    steps = whole_steps(seen.steps)  # A script that is restarted does some again, after its own checkpoint.
    after = [step for step in steps if (step.time > stood["stood"] if restarts else step.number > stood["after"])]
    if not after:
        return Found(None, ("no step was done afterwards",))
    seconds = after[0].time - stood["stood"]
    troubles = list(_named(way, stood, seen))
    if seconds > bound:
        troubles.append(f"it took {seconds:.1f} s, more than {bound:.0f} s")
    if not restarts and (gone := _gone(stood, seen)):
        troubles.append(f"processes of other ranks did not live on: {', '.join(map(str, gone))}")
    return Found(seconds, tuple(troubles))


def alarms(status: Status, kinds: Container[EventKind] = (EventKind.STANDSTILL,)) -> list[str]:
    """Return the messages of such events."""
    return [event.message for event in status.events if event.kind in kinds]


def _named(way: str, stood: Mapping[str, Any], seen: Seen) -> Iterator[str]:
    """Whether the rank at fault is named everywhere, and no other."""
    told, lines = alarms(seen.status), seen.log.splitlines()
    failed = [event.message for event in seen.status.events if event.kind is EventKind.RANK_FAILED]
    for place, texts in (("status", failed), ("log", lines)):
        ended = {match[1] for text in texts if (match := _FAILED.search(text))}
        if ended != (set() if way in GOES_ON else {stood["name"]}):
            yield f"ranks that failed, in the {place}: {', '.join(sorted(ended)) or 'none'}"
    if told and way in (*GOES_ON, *FAILS):
        yield f"there was an alarm: {told[-1]}"
    if way in (*GOES_ON, *FAILS):
        return
    wanted = f"rank {stood['rank']} ({stood['name']})"
    for place, texts in (("status", told), ("log", lines)):
        named = {each for text in texts if _REPLACED.search(text) for each in _NAMED.findall(text)}
        if named != {wanted}:
            yield f"the {place} blames {', '.join(sorted(named)) or 'nobody'}, and not {wanted}"


def _gone(stood: Mapping[str, Any], seen: Seen) -> list[int]:
    before = {note["pid"] for note in seen.steps if note["step"] == stood["after"]} - {stood["pid"]}
    after = {note["pid"] for note in seen.steps if note["step"] > stood["after"]}
    return sorted(before - after)
