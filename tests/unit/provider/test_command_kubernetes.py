"""The command at a run on Kubernetes, whose API server is one in memory, asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_runtime.run.spec import WorkersSpec
from elastic_runtime.run.status import Phase, Status, WorkerState, WorkerStatus
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner
from tests.unit.provider.kubernetes_http import KubernetesServer, kubernetes_server
from tests.unit.provider.kubernetes_objects import BEGAN, RUNNING, SPEC, job, pod, root_map, status_map

WORKER = str(WorkerName("run-worker-x7k2p"))
LOG = [b"launcher: it begins", b"[0] step 1"]
NAMES = ObjectNames(SPEC.name)


def of_run(plain: dict[str, Any], part: Part) -> dict[str, Any]:
    labels = runobjects.labels(SPEC.name, SPEC.uid, part)
    return plain | {"metadata": plain["metadata"] | {"labels": labels}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    """With a run that trains with two workers."""
    workers = (WorkerStatus(WORKER, "node-1", WorkerState.TRAINING, BEGAN, 1),)
    status = Status(
        SPEC.name, SPEC.uid, Phase.RUNNING, "2 ranks train", BEGAN, world_size=2, target_size=2, workers=workers
    )
    spec = replace(SPEC, workers=WorkersSpec(1, 2, 4))
    launcher = pod(state=RUNNING, phase="Running")
    owner = Owner("nightly", "scheduled__1", "train", -1, 1, "nonce").text()
    made = [
        (CONFIG_MAPS, of_run(dict(root_map(spec=spec, owner=owner).raw), Part.ROOT)),
        (CONFIG_MAPS, of_run(dict(status_map(status).raw), Part.STATUS)),
        (JOBS, of_run(dict(job().raw), Part.LAUNCHER)),
        (PODS, of_run(dict(launcher.raw), Part.LAUNCHER)),
        (PODS, of_run(dict(pod("run-worker-x7k2p", phase="Running").raw), Part.WORKER)),
        (REPLICA_SETS, of_run({"metadata": {"name": NAMES.worker}, "spec": {"replicas": 2}}, Part.WORKER)),
    ]
    with kubernetes_server() as (server, environment):
        for kind, manifest in made:
            server.run(server.place.create(kind, manifest))
        server.logs[launcher.name] = b"".join(b"2026-03-01T12:00:00.5Z " + line + b"\n" for line in LOG)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


def command(*words: str) -> int:
    return main([*words, "--place", "cloud"])


def test_runs_are_listed(server: KubernetesServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("runs") == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:5] == ["run", "cloud", "running", "2", "2"]
    assert line.endswith("nightly.train scheduled__1")


def test_a_run_is_shown(server: KubernetesServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("show", "run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["place"], said["status"]["reason"]) == ("cloud", "2 ranks train")
    assert [each["name"] for each in said["status"]["workers"]] == [WORKER]


@pytest.mark.parametrize(("word", "workers"), [("3", 3), ("+1", 3), ("min", 1)])
def test_scaling(server: KubernetesServer, word: str, workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("scale", "run", word) == 0, capsys.readouterr().err
    found = server.run(server.place.api.get(REPLICA_SETS, NAMES.worker, "scale"))
    assert found.spec["replicas"] == workers
    assert capsys.readouterr().out == f"run run: {workers} workers asked for\n"


def test_a_size_out_of_bounds(server: KubernetesServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("scale", "run", "900") == 1
    assert "900" in capsys.readouterr().err


def test_a_drill_deletes_the_workers_pod(server: KubernetesServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("notice", "run", "run-worker-zzzzz") == 1
    assert "has no worker" in capsys.readouterr().err
    assert command("notice", "run", WORKER, "--seconds", "5") == 0, capsys.readouterr().err
    left = server.run(server.place.api.list(PODS, runobjects.selector(part=Part.WORKER)))
    assert left == []


def test_the_way_in(
    server: KubernetesServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    words = "exec -it pod/run-worker-x7k2p --namespace ns --container worker -- sh"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("exec", "run") == 0
    assert capsys.readouterr().out == f"kubectl {words}\n"
    assert command("exec", "run", "--run") == 1
    assert f"kubectl is not installed here. Run elsewhere: kubectl {words}" in capsys.readouterr().err
    kubectl.write_text(f'#!/bin/sh\ntest "$*" = "{words}" || exit 1\nexit 7\n')
    kubectl.chmod(0o700)
    assert command("exec", "run", WORKER, "--run") == 7


def test_the_log(server: KubernetesServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("logs", "run") == 0
    assert capsys.readouterr().out.encode().splitlines() == LOG
    assert command("logs", "run", "-n", "1") == 0
    assert capsys.readouterr().out.encode().splitlines() == LOG[-1:]


def test_stacks_and_end_are_asked_for(server: KubernetesServer) -> None:
    assert command("stacks", "run") == 0
    assert command("end", "run", "--yes") == 0
    root = server.run(server.place.api.get(CONFIG_MAPS, SPEC.name))
    assert root.annotations[f"{runobjects.PREFIX}/cancel"].endswith("has ended it with elastic-training")


def test_a_server_that_is_away_or_refuses_is_said_in_a_line(
    server: KubernetesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.place.forbidden = {("list", CONFIG_MAPS)}
    assert command("runs") == 1
    said = capsys.readouterr()
    assert said.err.startswith("elastic-training: cloud: ")
    assert "list configmaps" in said.err
    assert said.err.count("\n") == 1
