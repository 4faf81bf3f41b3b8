"""The words in which operators, sensors and triggers speak with a cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

from elastic_runtime.run.headline import Headline
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

_COMPARED_OTHERWISE = ("name", "uid", "checkpoint", "timing", "scripts", "version")
"""Fields of a spec that are of one incarnation alone, or of which a part is."""
LOG_START = "0"
"""The cursor before the first line of any log. All other cursors are opaque and the cluster's own."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """One incarnation of a run."""

    name: str
    """From :func:`elastic_training.identity.naming.run_name`."""
    uid: str
    """From its :class:`~elastic_runtime.run.spec.RunSpec`."""


class ClaimOutcome(StrEnum):
    """Result of :meth:`~elastic_training.clusters.cluster.Cluster.claim`: whether the run is new or was found."""

    CREATED = "created"
    """There was no run of that name."""
    ADOPTED = "adopted"
    """A run of that name is alive, or has succeeded and nobody has collected its result."""
    REPLACED = "replaced"
    """A run of that name had ended; a new one took its place, and starts from its newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is now ours."""

    ref: RunRef
    outcome: ClaimOutcome
    note: str
    """For people: what was found."""
    differs: tuple[str, ...] = ()
    """Settings in which an adopted run differs from what was asked for now; it goes on with its own."""

    @property
    def warning(self) -> str:
        """For people: what the user may not expect of it; empty: nothing."""
        if self.outcome is not ClaimOutcome.ADOPTED or not self.differs:
            return ""
        return (
            "The adopted run goes on with the settings it was created with; these have changed since: "
            f"{', '.join(self.differs)}. To train with the new ones, end it or set fresh=True"
        )


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a list of runs."""

    ref: RunRef
    owner: str
    """The try of the task that the run works for; opaque."""
    created: datetime
    headline: Headline
    pool: str = ""
    """Name of the pool that its workers are of; empty: of none."""


@dataclass(frozen=True, slots=True)
class LogLease:
    """The right to stream a run's log, until somebody else takes it."""

    token: str
    """Random."""
    cursor: str
    """Where the log lease before, of whichever try, has stopped."""
    lease: float = 0.0
    """Seconds after which the run ends itself when nobody has renewed its lease; 0: never."""
    told: str = ""
    """Note of the log lease before about what it has logged; opaque."""


@dataclass(frozen=True, slots=True)
class LogLines:
    """New whole lines of the launcher's log, without their line ends."""

    lines: tuple[str, ...]
    """None, if there is only something to be noted."""
    cursor: str
    """Behind the last of them."""
    note: bool = True
    """Whether to note the cursor now; where that is dear, not every time."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A status that differs from the one before it. The first update of every watch has one."""

    status: Status


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing has happened for a beat: time for the watcher's own chores."""


Update = LogLines | StatusChanged | Quiet


def differing(old: RunSpec, new: RunSpec) -> tuple[str, ...]:
    """Names of the settings in which an adopted run differs from what is asked for now."""
    names = [field.name for field in fields(RunSpec) if field.name not in _COMPARED_OTHERWISE]
    found = [name for name in names if getattr(old, name) != getattr(new, name)]
    if _digest(old) != _digest(new):
        found.append("scripts")
    if old.timing.lease != new.timing.lease:
        found.append("lease")
    if _store(old) != _store(new):
        found.append("checkpoint")
    return tuple(found)


def _digest(spec: RunSpec) -> str | None:
    return spec.scripts.digest if spec.scripts else None


def _store(spec: RunSpec) -> tuple[str, float, int] | None:
    where = spec.checkpoint
    return None if where is None else (where.uri, where.every, where.keep)
