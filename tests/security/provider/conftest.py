"""What the tests that attack operators share."""

from __future__ import annotations

from tests import examples
from tests.unit.provider.conftest import fake, store

__all__ = ["fake", "store"]

examples.choose()
