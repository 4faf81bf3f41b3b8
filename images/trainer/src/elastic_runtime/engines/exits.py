"""How processes of ranks end: exit codes, negative for a signal."""

from __future__ import annotations

import signal
from collections.abc import Collection

from elastic_runtime.engines.base import SessionOutcome

LOST = -signal.SIGKILL
"""Exit code of a rank that went with its worker."""
ABORTED = -signal.SIGABRT
"""Exit code of a rank in which Gloo or NCCL gave up a peer, if nothing catches that."""


def describe(code: int) -> str:
    """An exit code for people."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def outcome_of(codes: Collection[int]) -> SessionOutcome:
    """Return the outcome of a session with these exit codes. If one rank was killed, the others failed with it."""
    killed = any(code in (-signal.SIGKILL, -signal.SIGTERM) for code in codes)
    return SessionOutcome.FAILED if any(code > 0 for code in codes) and not killed else SessionOutcome.LOST
