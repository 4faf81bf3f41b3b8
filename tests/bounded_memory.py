"""Code that may take no more memory than is allowed: more is a MemoryError there, whoever asks for it.

Not tracemalloc, which does not see torch's memory, and whose ``stop`` crashes the process where a native thread (one of
Gloo's, for instance) calls Python at that moment: python/cpython#128679, mended in 3.12.9.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPARE = 1 << 30
"""Bytes of address space; an arena of malloc's for one more thread reserves 128 MiB."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Have this process get no more than :data:`SPARE` beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
