"""Why a run has failed, for the top of its report: the first rank that did, and what it wrote last. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.engines.exits import describe
from elastic_runtime.run.status import MAX_REASON, EventKind, Phase, Status, shortened
from elastic_runtime.run.status_failure import MAX_TRACEBACK


@dataclass(frozen=True, slots=True)
class Why:
    """Of a failure."""

    who: str
    """``Rank 1 on worker-0``; empty: not known."""
    message: str
    """What was raised, or the reason of the run's end."""
    details: str
    """Step, exit code, time."""
    traceback: str
    """Its last characters, if it is too long: what was raised stands at the end."""


def why(status: Status) -> Why | None:
    """None: the run has not failed, or nothing is known beyond its reason."""
    if status.phase is not Phase.FAILED:
        return None
    if first := status.first_failure:
        step = "" if first.step is None else f"at step {first.step:,}, "
        details = f"{step}ended with {describe(first.exit_code)}, {first.time:%Y-%m-%d %H:%M:%S} UTC"
        cut = first.traceback if len(first.traceback) <= MAX_TRACEBACK else f"…{first.traceback[1 - MAX_TRACEBACK :]}"
        return Why(_capital(shortened(first.who, 200)), shortened(first.message, MAX_REASON), details, cut)
    failed = next((event for event in status.events if event.kind is EventKind.RANK_FAILED), None)
    if failed is None:
        return None
    who = shortened(f"{failed.message}{f' on {failed.worker}' if failed.worker else ''}", 400)
    step = "" if failed.step is None else f"after step {failed.step:,}, "
    return Why("", _capital(who), f"{step}{failed.time:%Y-%m-%d %H:%M:%S} UTC", "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
