"""The one place that reads the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current time, with the zone UTC."""
    return datetime.now(UTC)
