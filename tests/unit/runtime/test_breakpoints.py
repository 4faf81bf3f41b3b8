"""A ``breakpoint()`` that was left in a script."""

from __future__ import annotations

import sys

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.script.breakpoints import refuse_breakpoints


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)


@pytest.mark.usefixtures("hook")
def test_is_refused_and_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    refuse_breakpoints()
    with pytest.raises(InvalidSettings, match=r"test_breakpoints\.py:\d+ calls it, and a rank has no terminal"):
        breakpoint()


@pytest.mark.usefixtures("hook")
@pytest.mark.parametrize("chosen", ["0", "builtins.int"])
def test_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", chosen)
    refuse_breakpoints()
    breakpoint()
