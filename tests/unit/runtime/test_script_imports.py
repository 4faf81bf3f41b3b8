"""A script whose framework is not there is refused before anything starts, with the image that has it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher import script_imports
from elastic_runtime.launcher.script_imports import check_frameworks
from elastic_runtime.net import certificates
from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status
from tests.unit.runtime.launcher_bench import RUN, Place, Worker, launched


@pytest.fixture(autouse=True)
def only_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_imports, "find_spec", lambda name: object() if name == "torch" else None)


def check(source: str | bytes, **more: Any) -> None:
    scripts = pack({"train.py": source.encode() if isinstance(source, str) else source})
    check_frameworks(RunSpec("run", "uid", ("python", "train.py"), scripts=scripts, **more))


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "import os, tensorflow.keras",
        "from tensorflow import keras",
        "import horovod.tensorflow.keras as hvd",
        "from horovod import tensorflow as hvd",
        "from elastic_runtime.tensorflow import DurableState",
        "import keras",
    ],
)
def test_without_its_framework_is_refused(source: str) -> None:
    with pytest.raises(InvalidSettings, match=r"its script imports \w+, which .* has not.*FAMILY=tensorflow\)"):
        check(source)


def test_the_image_with_both_is_named_where_both_are_imported() -> None:
    with pytest.raises(InvalidSettings, match="make image FAMILY=both"):
        check("import torch\nimport tensorflow")


@pytest.mark.parametrize(
    "source",
    [
        "import torch, horovod.torch as hvd\nfrom elastic_runtime.torch import DurableState",
        "try:\n    import tensorflow\nexcept ImportError:\n    tensorflow = None",
        "def export():\n    import tensorflow",
        "from .tensorflow import x",
        "import tensorflow_like, sklearn",
        "import tensorflow as",
        "(" * 5000,
        b"\xff\xfe\x00",
        "\0",
    ],
)
def test_what_may_run_is_let_through(source: str | bytes) -> None:
    check(source)


def test_what_comes_by_a_path_of_the_ranks_own_is_let_through() -> None:
    check("import tensorflow", environment={"PYTHONPATH": "/opt/more"})


@pytest.mark.parametrize("command", [("sh", "-c", "python x.py"), ("python", "-m", "train"), ("/usr/bin/python2", "x")])
def test_what_this_python_does_not_run_is_let_through(command: tuple[str, ...]) -> None:
    check_frameworks(RunSpec("run", "uid", command))


def test_a_file_of_this_machine_and_code_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    for command in (("python", "train.py"), ("python", "-c", "import tensorflow")):
        with pytest.raises(InvalidSettings, match="its script imports tensorflow"):
            check_frameworks(RunSpec("run", "uid", command, working_directory=str(tmp_path)))
    check_frameworks(RunSpec("run", "uid", ("python", "gone.py"), working_directory=str(tmp_path)))
    check_frameworks(RunSpec("run", "uid", ("python", "."), working_directory=str(tmp_path)))


def test_a_launcher_with_an_image_of_its_own_says_nothing_of_the_workers(tmp_path: Path) -> None:
    certificates.create(tls := tmp_path / "tls")
    spec = replace(RUN, command=("python", "train.py"), scripts=pack({"train.py": b"import tensorflow"}))

    async def begins(_place: Place, _worker: Worker, _running: asyncio.Task[Status]) -> None:
        """The worker was let in."""

    launched(tls, begins, spec=spec, own_image=True)
    with pytest.raises(InvalidSettings, match="its script imports tensorflow"):
        launched(tls, begins, spec=spec)
