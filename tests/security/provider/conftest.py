"""What the tests that attack operators share."""

from __future__ import annotations

from tests.unit.provider.conftest import fake

__all__ = ["fake"]
