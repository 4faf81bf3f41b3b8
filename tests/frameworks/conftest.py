"""Real runs of trainings that are written with a framework, in the environment ``.venv-frameworks``."""

from __future__ import annotations

from pathlib import Path

from tests.local.conftest import start

__all__ = ["SCRIPTS", "start"]

SCRIPTS = Path(__file__).parent / "scripts"
