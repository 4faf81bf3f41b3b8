"""An agent that is stopped is marked lost, ended with its ranks, and replaced; it does not come back beside that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, Timing
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, until

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine="horovod", fault="worker", place="local")
@pytest.mark.shows(engine="torch", fault="worker", by="test-long", place="local")
@pytest.mark.parametrize("start", ["horovod", pytest.param("torch", marks=pytest.mark.long)], indirect=True)
def test_a_stopped_agent_is_ended_and_replaced(start: Start, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = start(
        *(Script("exact.py", holds=(20,)), (2, 2, 2)),
        checkpoint=CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0),
        timing=Timing(agent_silence=4.0),
    )
    run.at(20)
    stopped = run.worker(1)
    agent = run.agent_pid(stopped.name)
    os.kill(agent, signal.SIGSTOP)
    run.until_status(lambda status: run.events(EventKind.LOST) == [f"lost {stopped.name}"], "it is lost")
    until(lambda: not Path(f"/proc/{agent}").exists(), "its process is gone")
    run.worlds(2, 0, 2)
    status = run.succeed()
    [lost] = [event.message for event in status.events if event.kind is EventKind.LOST]
    # How long that is depends on whether its ranks had committed shortly before.
    assert lost.startswith(f"{stopped.name} was lost: its agent has been silent for ")
    assert lost.endswith("; its processes are killed, and another worker starts")
    undisturbed.assert_same(run)
