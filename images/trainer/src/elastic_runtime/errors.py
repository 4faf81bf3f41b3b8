"""Every exception that this package raises on purpose, in one tree.

::

    ElasticError
    ├── PermanentError            trying again cannot help
    │   ├── InvalidSettings       a value that the user gave; names the field and the remedy (is also a ValueError)
    │   ├── InvalidDocument       a spec, status or message that cannot be read (is also a ValueError)
    │   ├── OwnershipLost         a newer try, or a newer launcher, owns the run now
    │   │   └── FenceTaken        another run has the same fence in its store
    │   ├── StatesDiffer          ranks of one training have different states; names the entry and the ranks
    │   ├── MissingRight          the cluster's access rules do not allow it; names the right and how to grant it
    │   └── RunFailed             the training itself ended without success; carries a FailureKind
    └── RetryableError            the same call may succeed later
        ├── RunNotFound           no such run (any more, or not yet)
        ├── ClusterUnavailable    the place where the workers run does not answer
        ├── Conflict              what was to be changed has been changed since it was read: read it again
        ├── WatchExpired          a watch cannot go on from where it was: list again
        └── StoreUnavailable      the checkpoint store does not answer

Errors of other libraries are translated into these at the module that calls them.
"""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Why a run failed, as a value that a DAG can branch on."""

    RANK_FAILED = "rank_failed"
    """Ranks ended by themselves with a code other than 0, all of them or too often."""
    EARLY_EXIT = "early_exit"
    """A rank ended with code 0 while others were still training: no success."""
    START_TIMEOUT = "start_timeout"
    """Too few workers came within ``recovery.start_timeout``."""
    MAX_WAIT_EXCEEDED = "max_wait_exceeded"
    """Fewer workers than the minimum for longer than ``recovery.max_wait``."""
    MAX_PAUSE_EXCEEDED = "max_pause_exceeded"
    """Paused for longer than ``recovery.max_pause``."""
    RESET_LIMIT = "reset_limit"
    """More forced resets than ``recovery.reset_limit``."""
    STANDSTILL = "standstill"
    """The training stood still at the same step twice, by the same rank's fault or by nobody's."""
    RANKS_DIFFER = "ranks_differ"
    """A rank did not do what the others did, for the second time."""
    OUT_OF_MEMORY = "out_of_memory"
    """A worker ran out of memory, and ``recovery.grow_memory`` may give it no more."""
    BUDGET = "budget"
    """The run has cost what it may: ``deadline.budget``."""
    CANCELLED = "cancelled"
    """Somebody asked for the end."""
    ABANDONED = "abandoned"
    """Nobody renewed the lease: the task is gone."""
    LAUNCHER_LOST = "launcher_lost"
    """The launcher's process is gone without a final status. Written by the reader, never by a launcher."""
    POD_REFUSED = "pod_refused"
    """Kubernetes cannot run a pod of the run, and waiting would not help: its image, a secret, a quota, its admission,
    missing rights. Written by the reader where the launcher itself cannot run."""
    LAUNCHER_ERROR = "launcher_error"
    """No launcher can run the run where it was started, and another try would end the same: a package is missing, or
    what it is to run cannot be read. Where the launcher cannot write that itself, its reader does."""
    EXECUTION_TIMEOUT = "execution_timeout"
    """The time is over that the task has for a try. Written by the task, never by a launcher."""
    UNKNOWN = "unknown"
    """None is told."""


class ElasticError(Exception):
    """Base of every exception of this package."""


class PermanentError(ElasticError):
    """Error that a retry cannot fix. Callers report it and stop."""


class RetryableError(ElasticError):
    """Error that may be gone later. Callers may retry the same call."""


class InvalidSettings(PermanentError, ValueError):
    """A value that the user gave cannot work.

    Args:
        field: dotted name of the setting, as the user writes it (``workers.min``).
        problem: what is wrong with the value, the value included.
        remedy: what to write instead.
    """

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}. {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class InvalidDocument(PermanentError, ValueError):
    """A spec, a status document or a message on the wire cannot be read."""


class DamagedCheckpoint(InvalidDocument):
    """What a checkpoint has lost is proved: a part or the manifest is missing, of another size or of another digest."""


class OwnershipLost(PermanentError):
    """A newer try of the task, or a newer launcher, owns the run; this one must not touch it."""


class FenceTaken(OwnershipLost):
    """Another run has the same fence, as it began in the same second, and has claimed the store first."""


class StatesDiffer(PermanentError):
    """Ranks of one training have different states; the message names the entry and the ranks."""


class MissingRight(PermanentError):
    """The cluster's access rules do not allow a call; the message names the right and how to grant it."""


class RunFailed(PermanentError):
    """The training ended without success.

    Args:
        kind: why, as a value that a DAG can branch on.
        reason: the same for people.
    """

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(f"{reason} [{kind}]")
        self.kind = kind
        self.reason = reason


class RunNotFound(RetryableError):
    """There is no such run, not any more or not yet."""


class ClusterUnavailable(RetryableError):
    """The place where the workers run does not answer."""


class Conflict(RetryableError):
    """Concurrent change of an object since it was read. Read it again, and decide again."""


class WatchExpired(RetryableError):
    """The cluster has forgotten the version from which a watch was to go on: list again."""


class StoreUnavailable(RetryableError):
    """The checkpoint store does not answer, or refuses for a reason that may pass."""
