"""What a task leaves of a real run that fails, on this machine: found by Airflow's ids, the first failure on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Phase
from elastic_training import archive
from elastic_training.archive import reading
from elastic_training.exceptions import TrainingFailed
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Recovery, Workers
from tests.contract.cluster_kinds import trainer_python
from tests.report_data import data_of
from tests.unit.provider.fakes import FakeTaskInstance

pytestmark = pytest.mark.timeout(120)
SCRIPT = """
import os, sys, time
if os.environ["HOROVOD_HOSTNAME"].startswith("worker-1"):
    def look_up(index):
        raise ValueError(f"no such sample: {index}")
    look_up(4711)
time.sleep(600)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script that throws on one of two workers."""
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON", trainer_python())
    monkeypatch.setattr(reading, "rendered_fields", lambda *_: [])
    (tmp_path / "throw.py").write_text(SCRIPT)
    return tmp_path


def test_the_rank_that_throws_stands_on_top_of_the_report(machine: Path) -> None:
    settings: dict[str, Any] = {"workers": Workers(min=2), "recovery": Recovery(rank_failures=0), "warm": False}
    task = ElasticHorovodOperator(
        task_id="train", command=["python", "throw.py"], working_directory=str(machine), deferrable=False, **settings
    )
    ti = FakeTaskInstance("train")
    with pytest.raises(TrainingFailed):
        task.execute({"ti": ti})
    kept = archive.read(ti.dag_id, ti.run_id, ti.task_id)
    assert kept is not None
    assert (kept.status.phase, kept.status.failure) == (Phase.FAILED, FailureKind.RANK_FAILED)
    first = kept.status.first_failure
    assert first is not None
    assert first.worker.startswith("worker-1")
    assert (first.exit_code, first.message) == (1, "ValueError: no such sample: 4711")
    assert "in look_up" in first.traceback
    assert ti.pushed["failure"]["report"] == kept.report_url
    top = data_of(kept.report())["why"]
    assert "worker-1" in top["who"]
    assert "ValueError: no such sample: 4711" in top["message"]
    assert "Traceback (most recent call last)" in top["traceback"]
    assert "in look_up" in top["traceback"]
