"""Which cluster ``tools/cluster`` takes, with stand-ins for kubectl, docker and kind on PATH."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster_kit import cli
from cluster_kit.choice import choose, is_started, remember
from cluster_kit.debian import lab
from cluster_kit.errors import ClusterError, NoWay
from cluster_kit.given import GivenCluster
from cluster_kit.kind import KindCluster
from cluster_kit.shell import Progress

DOCKER = """echo '[{"IPAM": {"Config": [{"Gateway": "fc00::1"}, {"Gateway": "172.18.0.1"}]}}]'"""
"""An engine that answers."""


class Machine:
    """What a machine offers: programs that do what their text says, and note how they were called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("ELASTIC_TRAINING_CLUSTER_STATE", str(self.state))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setattr(lab, "possible", lambda: "not Debian")
        for name in ("docker", "kind", "kubectl"):
            self.program(name, "exit 1")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "$@" >>{self.folder / name}.calls\n{text}\n')
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        return (self.folder / f"{name}.calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_without_any_way_it_says_what_was_tried(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up"]) == NoWay.exit_status == 3

    assert "no Docker engine answers; debian: not Debian. Set KUBECONFIG" in capsys.readouterr().err


def test_the_cluster_of_kubeconfig_comes_first_and_is_left_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.program("kubectl", "echo ok")
    machine.program("docker", DOCKER)
    monkeypatch.setenv("KUBECONFIG", "/somewhere/config")

    assert isinstance(choose(machine.state, Progress()), GivenCluster)
    for words in (["node-down", "n"], ["node-up", "n"], ["api-down"], ["api-up"], ["load", "image.tar"]):
        assert cli.main(words) == 4
    assert cli.main(["up"]) == cli.main(["down"]) == 0
    assert all("get --raw /readyz" in call for call in machine.calls("kubectl"))
    assert cli.main(["env"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["export KUBECONFIG=/somewhere/config", "export ELASTIC_TRAINING_CLUSTER_KIND=kubeconfig"]


def test_a_kubeconfig_behind_which_nothing_answers_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.program("docker", DOCKER)
    monkeypatch.setenv("KUBECONFIG", "/somewhere/config")

    assert isinstance(choose(machine.state, Progress()), KindCluster)
    assert "no cluster answers behind /somewhere/config" in capsys.readouterr().err


def test_our_own_kubeconfig_is_not_somebody_elses(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.program("docker", DOCKER)
    machine.program("kubectl", "echo ok")
    monkeypatch.setenv("KUBECONFIG", str(machine.state / "kind" / "kind.conf"))

    assert isinstance(choose(machine.state, Progress()), KindCluster)


def test_what_was_started_is_what_is_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "possible", lambda: None)
    started = choose(machine.state, Progress())
    remember(machine.state, started)
    machine.program("docker", DOCKER)

    assert isinstance(started, lab.DebianLab)
    assert isinstance(choose(machine.state, Progress()), lab.DebianLab)


def test_clearing_away_a_dead_lab_does_not_forget_that_one_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing finds what ``up`` has started: not ``load``, and not ``down``."""
    monkeypatch.setattr(lab, "possible", lambda: None)
    for name in ("ip", "iptables"):
        machine.program(name, "exit 0")
    remember(machine.state, choose(machine.state, Progress()))
    (machine.state / "debian").mkdir()
    (machine.state / "debian" / "complete").touch()  # and no process of it
    started: list[bool] = []

    def make(of: lab.DebianLab) -> None:
        started.append(is_started(machine.state))
        raise ClusterError("far enough")

    monkeypatch.setattr(lab.DebianLab, "_make", make)
    assert cli.main(["up"]) == 1

    assert started == [True]
    assert cli.main(["down"]) == 0
    assert not machine.state.exists()


def test_kind_gets_a_worker_for_each_node_and_is_deleted_by_down(machine: Machine) -> None:
    machine.program("docker", DOCKER)
    machine.program("kind", "exit 0")

    assert cli.main(["up", "a", "b:pool=spot"]) == 0

    (create,) = [call for call in machine.calls("kind") if call.startswith("create")]
    settings = json.loads(Path(create.split("--config=")[1].split()[0]).read_text())
    assert settings["nodes"] == [
        {"role": "control-plane"},
        {"role": "worker", "labels": {}},
        {"role": "worker", "labels": {"pool": "spot"}},
    ]
    assert cli.main(["down"]) == 0
    assert machine.calls("kind")[-1].startswith("delete cluster --name=elastic-training")
    assert not machine.state.exists()


def test_with_hands_the_cluster_to_a_command_and_ends_what_it_started(machine: Machine) -> None:
    machine.program("docker", DOCKER)
    machine.program("kind", "exit 0")

    status = cli.main(
        ["with", "--", "sh", "-c", f"echo $KUBECONFIG $ELASTIC_TRAINING_CLUSTER_HOST >{machine.folder}/seen; exit 7"]
    )

    assert status == 7
    assert (machine.folder / "seen").read_text() == f"{machine.state / 'kind' / 'kind.conf'} 172.18.0.1\n"
    assert machine.calls("kind")[-1].startswith("delete cluster")


def test_with_leaves_a_cluster_that_was_up(machine: Machine) -> None:
    machine.program("docker", DOCKER)
    machine.program("kind", "exit 0")
    assert cli.main(["up"]) == 0

    assert cli.main(["with", "true"]) == 0

    assert not any(call.startswith("delete") for call in machine.calls("kind"))


def test_a_folder_that_others_may_write_to_is_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(machine.state, 0o777)

    assert cli.main(["status"]) == 1

    assert "is open to others" in capsys.readouterr().err


@pytest.mark.parametrize("node", ["", "Node", "a_b", "node:=x", "-a"])
def test_what_is_no_node_name_is_refused(machine: Machine, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--", node]) == 1

    assert "is no node: write NAME" in capsys.readouterr().err
