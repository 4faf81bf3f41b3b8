"""Horovod's timelines of all worlds become one trace, whatever happens to the ranks that write them."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(300)


def read(uri: str | None) -> list[dict[str, Any]]:
    assert uri is not None
    return list(json.loads(gzip.decompress(Path(urlsplit(uri).path).read_bytes()))["traceEvents"])


def test_resizes_and_a_killed_rank_0_give_one_trace_of_all_worlds(start: Start, tmp_path: Path) -> None:
    run = start(
        Script("exact.py", commit_every=5, holds=(10, 25, 40, 60)),
        (1, 2, 3),
        recovery=RecoverySpec(backoff=2.0),
        checkpoint=CheckpointSpec((tmp_path / "store").as_uri()),
        observe=ObserveSpec(timeline=True),
    )
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(25)
    run.resize(2)
    run.go(25)
    run.at(40)
    run.worlds(2, 3, 2)
    os.kill(run.rank_pid(0), signal.SIGKILL)
    run.until_status(lambda status: sizes_of(status)[3:][-1:] == [2], "two ranks again")
    run.go(40)
    status = run.finish()

    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    events = read(status.timeline)
    worlds = [event for event in events if event["pid"] == 0 and event["ph"] == "X"]
    expected = [f"world {each.generation} of {each.size} ranks" for each in status.history if each.size]
    assert [world["name"] for world in worlds] == expected
    begins = [world["ts"] for world in worlds]
    assert begins == sorted(begins)
    assert begins[0] == 0.0
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    reduced = {names[event["pid"]].split(" · ")[0] for event in events if "ALLREDUCE" in event.get("name", "")}
    assert reduced == set(expected)
    told = [event["name"] for event in events if event["ph"] == "i" and event["pid"] == 0]
    assert any(name.startswith("rank_failed") for name in told)
    assert any(name.startswith("size_asked") for name in told)
