"""How many files and connections this process may have open."""

from __future__ import annotations

import resource

ENOUGH = 65536
"""More are asked for by nobody, and some programs close as many as there may be, one by one."""


def descriptor_limit() -> int:
    """Return the limit of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Take what the system allows, up to :data:`ENOUGH`: 1,024, a common start, are few for a server that is attacked.

    What this process starts has the same limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
