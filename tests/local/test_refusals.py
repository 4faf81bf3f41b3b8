"""What keeps a launcher from running a run is the run's final status: it is not lost, and not tried again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.engines.base import HOW_TO_JOIN
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("module", "spec", "words"),
    [
        ("cryptography", {"engine": "torch"}, r"cannot run a launcher: .*cryptography.*Install elastic-runtime"),
        ("psutil", {"engine": "torch"}, r"cannot run a launcher: .*psutil.*Install elastic-runtime"),
        ("horovod", {}, "engine: Horovod is not installed here"),
        (
            "tensorboardX",
            {"engine": "torch", "observe": ObserveSpec(tensorboard=True), "checkpoint": CheckpointSpec("file:///tmp")},
            "observe.tensorboard: tensorboardX is not installed where the launcher runs",
        ),
        ("", {"engine": "no such"}, "engine: 'no such' is not an engine that is installed here"),
    ],
)
def test_a_launcher_that_lacks_something_says_so_in_the_status(
    start: Start, tmp_path: Path, module: str, spec: dict[str, Any], words: str
) -> None:
    (site := tmp_path / "site").mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    run = start(Script("none"), (1, 1, 1), ["true"], [site], **spec)
    assert run.launcher.wait(120) == 2, run.report("no refusal")
    status = run.folder.read_status()
    assert status is not None
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.LAUNCHER_ERROR)
    assert status.finished is not None
    assert re.search(words, status.reason), status.reason
    assert "this run cannot be run" in run.log()
    run.assert_nothing_left()


PLAIN = "import time; time.sleep(0.1)"
OF_TORCHRUN = "import torch.distributed as dist; dist.init_process_group('gloo')"
BY_VARIABLES = "import os; os.environ['LOCAL_RANK']"


@pytest.mark.parametrize(
    ("start", "script", "failure", "words"),
    [
        # To Horovod, ranks that end with 0 one after the other had nothing to do: a success.
        ("torch", PLAIN, FailureKind.EARLY_EXIT, "has ended with code 0 before its ranks had met"),
        ("torch", OF_TORCHRUN, FailureKind.RANK_FAILED, "RANK expected"),
        pytest.param("horovod", OF_TORCHRUN, FailureKind.RANK_FAILED, "RANK expected", marks=pytest.mark.long),
        pytest.param("torch", BY_VARIABLES, FailureKind.RANK_FAILED, "KeyError: 'LOCAL_RANK'", marks=pytest.mark.long),
        ("horovod", BY_VARIABLES, FailureKind.RANK_FAILED, "KeyError: 'LOCAL_RANK'"),
    ],
    indirect=["start"],
)
def test_a_script_of_another_kind_is_told_how_to_join(
    start: Start, script: str, failure: FailureKind, words: str
) -> None:
    run = start(Script("none"), (2, 2, 2), ["python", "-c", script])
    status = run.end()
    assert status.failure is failure, run.report("another end")
    assert words in status.reason
    assert "ended while others were still training" not in status.reason
    assert status.reason.endswith(HOW_TO_JOIN)
    assert "@elastic.run" in HOW_TO_JOIN
    assert "restart=Restart()" in HOW_TO_JOIN
