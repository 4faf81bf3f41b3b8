"""Jupyter beside the workers: from the DAG file to the objects of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import JupyterSpec, RunSpec
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Jupyter, Pods, PodShape, SecretRef, Volume
from elastic_training.settings.pods import Hardware
from tests.unit.provider.manifests_bench import SPEC, container_of, everything, objects_of

ASKED = replace(SPEC, jupyter=JupyterSpec("notebook/key", 9999, "1Gi"))


def operator(**arguments: Any) -> ElasticHorovodOperator:
    words = {"task_id": "train", "command": ["python", "train.py"], "workers": {"min": 1}, "cluster": "training"}
    return ElasticHorovodOperator(**{**words, **arguments})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (Jupyter, "jupyter.token"),
        (lambda: Jupyter(token="1234567890abcdef"), "jupyter.token"),
        (lambda: Jupyter(token="/key"), "jupyter.token"),
        (lambda: Jupyter(token="notebook/"), "jupyter.token"),
        (lambda: Jupyter(token="Not_A_Name/key"), "jupyter.token"),
        (lambda: Jupyter(token="notebook/a b"), "jupyter.token"),
        (lambda: Jupyter(token="a/b", port=80), "jupyter.port"),
        (lambda: Jupyter(token="a/b", port=70000), "jupyter.port"),
        (lambda: Jupyter(token="a/b", memory="much"), "jupyter.memory"),
        (lambda: operator(jupyter={"port": 8888}), "jupyter.token"),
        (lambda: operator(jupyter=True), "jupyter"),
        (lambda: operator(jupyter={"token": "a/b"}, cluster="local"), "jupyter"),
        (lambda: JupyterSpec(""), "jupyter.token"),
    ],
)
def test_what_cannot_work_is_refused_at_parse(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make()
    assert refused.value.field == field


def test_reaches_only_launchers_that_end_it() -> None:
    spec = operator(jupyter={"token": "notebook/key", "port": "9999"}).spec("run")
    assert spec.jupyter == JupyterSpec("notebook/key", 9999)
    assert from_json(RunSpec, to_json(spec)) == spec
    assert operator().spec("run").jupyter is None


def test_a_place_without_pods_is_refused_when_it_is_known() -> None:
    task = operator(jupyter=Jupyter(token="notebook/key"), cluster="{{ params.where }}")
    task.cluster = "local"
    with pytest.raises(InvalidSettings, match="no pods"):
        task.creating_cluster()


class TestPod:
    def made(self, pods: Pods | None = None) -> dict[str, Any]:
        return dict(everything(objects_of(pods, ASKED))["ReplicaSet jupyter"]["spec"])

    def test_is_not_there_unless_asked_for(self) -> None:
        assert not [each for each in everything(objects_of()) if "jupyter" in each]

    def test_has_neither_certificate_nor_token_of_the_api_server(self) -> None:
        made = self.made(Pods(image="registry/trainer:1", worker_service_account="data"))["template"]["spec"]
        assert (made["automountServiceAccountToken"], made["serviceAccountName"]) == (False, "data")
        (volume,) = made["volumes"]
        items = [{"key": "key", "path": "token"}]
        assert volume["secret"] == {"secretName": "notebook", "items": items, "defaultMode": 0o440}
        assert made["securityContext"]["runAsNonRoot"]
        assert made["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    def test_runs_the_runs_image_on_the_port_with_the_token(self) -> None:
        made = self.made()
        container = container_of(made["template"])
        assert container["image"] == "registry/trainer:1"
        assert container["args"] == [*runobjects.JUPYTER_COMMAND, "9999", runobjects.JUPYTER_TOKEN]
        (mount,) = container["volumeMounts"]
        assert mount == {"name": "elastic-training-jupyter", "mountPath": runobjects.JUPYTER_FOLDER, "readOnly": True}
        assert container["resources"]["limits"] == {"memory": "1Gi"}
        assert made["replicas"] == 1
        assert made["selector"]["matchLabels"].items() <= made["template"]["metadata"]["labels"].items()

    def test_sees_what_ranks_see_but_takes_none_of_their_nodes(self) -> None:
        pods = Pods(
            image="registry/trainer:1",
            volumes=[Volume("/data", claim="images")],
            secrets=[SecretRef("keys"), SecretRef("one", key="k", env="K")],
            worker=PodShape(node_selector={"pool": "gpu"}),
            launcher=PodShape(node_selector={"pool": "cpu"}, template={"spec": {"containers": []}}),
            hardware=Hardware(gpus=2, shm="2Gi"),
        )
        made = self.made(pods)["template"]["spec"]
        container = made["containers"][0]
        assert made["nodeSelector"] == {"pool": "cpu"}
        assert [each["mountPath"] for each in container["volumeMounts"]] == [runobjects.JUPYTER_FOLDER, "/data"]
        assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
        assert [each["name"] for each in container["env"]] == ["K"]
        assert "gpu" not in json.dumps(container)

    def test_has_the_stores_credentials_as_ranks_have(self) -> None:
        objects = objects_of(spec=ASKED, credentials={"AWS_ACCESS_KEY_ID": "id"})
        container = container_of(everything(objects)["ReplicaSet jupyter"]["spec"]["template"])
        assert container["envFrom"] == [{"secretRef": {"name": runobjects.ObjectNames(SPEC.name).store}}]


def test_is_reached_through_a_service_that_the_network_does_not_open() -> None:
    made, without = everything(objects_of(spec=ASKED)), everything(objects_of())
    service = made["Service jupyter"]
    assert service["metadata"]["name"] == f"{SPEC.name}-jupyter"
    assert service["spec"]["selector"][runobjects.PART_LABEL] == "jupyter"
    assert [(each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [(9999, 9999)]
    assert "type" not in service["spec"], "a cluster's own address, and no other"
    assert made["NetworkPolicy network"] == without["NetworkPolicy network"]
    policy = made["NetworkPolicy network"]["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= made["ReplicaSet jupyter"]["spec"]["template"]["metadata"]["labels"].items()


def test_the_launchers_address_is_that_of_the_first_service() -> None:
    kinds = [each["metadata"]["name"] for each in objects_of(spec=ASKED).first("uid", {}) if each["kind"] == "Service"]
    names = runobjects.ObjectNames(SPEC.name)
    assert kinds == [names.launcher, names.jupyter]
