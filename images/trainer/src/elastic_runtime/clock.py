"""The one place that reads the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Aware, UTC; in whole milliseconds, as documents keep it, so that what is read again equals what was written."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
