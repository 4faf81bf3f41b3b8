"""How processes of ranks end: exit codes, negative for a signal."""

from __future__ import annotations

import signal

LOST = -signal.SIGKILL
"""Exit code of a rank that went with its worker."""


def describe(code: int) -> str:
    """An exit code for people."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
