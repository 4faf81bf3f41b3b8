"""What a script needs no line for: torch's profile and TensorBoard's events, kept beside the checkpoints."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tensorboardX.proto.event_pb2 import Event

from elastic_runtime.run.observe import ObserveSpec, ProfileSpec, PrometheusSpec
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


def test_each_rank_profiles_the_steps_that_were_asked_for(start: Start, tmp_path: Path) -> None:
    store = tmp_path / "store"
    observe = ObserveSpec(profile=ProfileSpec(10, 3))
    run = start(Script("exact.py", epochs=3), (2, 2, 2), checkpoint=CheckpointSpec(store.as_uri()), observe=observe)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    files = [Path(urlsplit(uri).path) for uri in status.profiles]
    assert [file.name.split("-")[3] for file in files] == ["0", "1"]
    for file in files:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        steps = [event for event in events if event.get("name", "").startswith("Optimizer.step")]
        assert len(steps) == 2 * 3  # Horovod's optimizer is one around torch's.


def test_a_run_is_scraped_while_it_trains(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    observe = ObserveSpec(prometheus=PrometheusSpec(0, str(token)))
    run = start(Script("exact.py", epochs=2, holds=(5,)), (2, 2, 2), observe=observe)
    run.at(5)
    run.until_status(lambda status: status.metrics, "a loss was reported")
    found = re.search(r"Prometheus is answered on port (\d+)", run.log())
    assert found
    request = urllib.request.Request(
        f"http://127.0.0.1:{found[1]}/metrics", headers={"Authorization": f"Bearer {token.read_text()}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    assert 'elastic_training_world_size{run="scripted"} 2.0' in text
    assert 'elastic_training_reported{name="loss",run="scripted"}' in text
    assert run.finish().phase is Phase.SUCCEEDED


def test_what_cannot_be_had_ends_the_run_at_once_and_is_named(start: Start, tmp_path: Path) -> None:
    run = start(Script("exact.py"), observe=ObserveSpec(prometheus=PrometheusSpec(0, str(tmp_path / "missing"))))
    run.until(run.is_over, "the launcher has ended", alive=False)
    assert "observe.prometheus" in run.log()
    assert "cannot be read" in run.log()


def test_tensorboard_shows_what_was_reported_without_steps_that_were_undone(start: Start, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = start(
        Script("exact.py", epochs=3, commit_every=5, holds=(12,)),
        (1, 2, 2),
        checkpoint=CheckpointSpec(store.as_uri()),
        observe=ObserveSpec(tensorboard=True),
    )
    run.at(12)
    written = run.folder.scratch
    run.until(lambda: [steps_in(each) for each in written.rglob("events.*")] == [[5, 10]], "events are on the disk")
    os.kill(run.rank_pid(0), signal.SIGKILL)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    files = sorted((store / "tensorboard").iterdir())
    assert len(files) == 2
    assert [step for file in files for step in steps_in(file)] == [5, 10, 15, 20]


def steps_in(file: Path) -> list[int]:
    """Of what was reported, as far as it is on the disk."""
    return [event.step for event in events(file) if event.summary.value[:1]]


def events(file: Path) -> Iterator[Any]:
    """Whole records of TFRecord's format: 8 bytes of length, 4 of its sum, the content, 4 of its sum."""
    data = file.read_bytes()
    while len(data) >= (end := 12 + int.from_bytes(data[:8], "little")) + 4:
        yield Event.FromString(data[12:end])
        data = data[end + 4 :]
