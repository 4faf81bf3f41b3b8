"""Engines are found by name: ours, and those of other distributions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime import engines
from elastic_runtime.engines import horovod
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.world import WORLD


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with three engines, as an installer leaves it."""
    (tmp_path / "some_engine.py").write_text("ENGINE = 'the very engine'")
    metadata = tmp_path / "some_engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-engine\nVersion: 1.0\n")
    entries = ("some = some_engine:ENGINE", "broken = no_such_module:ENGINE", "horovod = some_engine:ENGINE")
    (metadata / "entry_points.txt").write_text("\n".join(["[elastic_runtime.engines]", *entries]))
    monkeypatch.syspath_prepend(tmp_path)


def test_ours_is_found() -> None:
    assert find_engine("horovod").name == "horovod"


def test_where_there_is_no_horovod_a_session_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "built", tuple)
    calls: Any = None
    with pytest.raises(InvalidSettings, match="Horovod is not installed here"):
        find_engine("horovod").session(calls, "127.0.0.1", 0, calls)


@pytest.mark.usefixtures("installed")
class TestOfAnotherDistribution:
    def test_is_found(self) -> None:
        assert find_engine("some") == "the very engine"

    def test_does_not_take_the_place_of_ours(self) -> None:
        assert find_engine("horovod").name == "horovod"

    def test_that_is_broken_is_named(self) -> None:
        with pytest.raises(InvalidSettings, match="'broken' is installed as no_such_module:ENGINE, which cannot be"):
            find_engine("broken")

    def test_is_offered_where_the_name_is_unknown(self) -> None:
        known = "broken, horovod, horovodrun, some"
        with pytest.raises(InvalidSettings, match=rf"'other' is not an engine .* Write one of {known}"):
            find_engine("other")


def test_the_launcher_and_the_agent_import_no_engine() -> None:
    script = (
        "import sys, elastic_runtime.launcher.loop, elastic_runtime.launcher.local.platform;"
        "import elastic_runtime.launcher.__main__, elastic_runtime.agent.__main__;"
        "from elastic_runtime.engines.registry import find_engine; find_engine('horovod').preload;"
        "print([name for name in ('horovod', 'torch', 'numpy') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


IN_ANY_ORDER = """
import importlib, os, sys
import torch

for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    _, status = os.wait()
    if status:
        print(name)
"""
"""Children print why they fail."""


@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_a_rank_can_import_any_module_first(engine: str) -> None:
    """What a script imports first has its engine imported, which must not need what is being imported."""
    folder = Path(engines.__file__).parent / engine
    found = {path.stem for path in folder.glob("[a-z]*.py")} - {"tensorflow"}  # This Horovod was built without it.
    modules = [f"elastic_runtime.engines.{engine}.{name}" for name in found]
    packages = ["elastic_runtime.tensorflow", "elastic_runtime.torch", "elastic_runtime.torch.sharded_state"]
    command = (sys.executable, "-c", IN_ANY_ORDER, *modules, *packages)
    environment = {**os.environ, WORLD: find_engine(engine).world}
    said = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert (said.stdout, said.stderr) == ("", "")
    assert len(modules) > 4
