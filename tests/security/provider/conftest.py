"""How the attacks on Airflow's side are run."""

from __future__ import annotations

from tests import examples
from tests.unit.provider.conftest import fake

__all__ = ["fake"]

examples.choose()
