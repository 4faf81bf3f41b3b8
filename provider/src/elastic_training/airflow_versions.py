"""Where the versions of Airflow differ, from 2.11 to 3.3; nothing else in this package asks for a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.mixins import ResolveMixin
else:
    try:
        from airflow.sdk.definitions._internal.mixins import ResolveMixin
    except ImportError:  # Airflow 2
        from airflow.utils.mixins import ResolveMixin

__all__ = ["ResolveMixin"]
