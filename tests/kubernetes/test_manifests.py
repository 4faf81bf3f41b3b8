"""What an API server says of the manifests, without making anything of them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from elastic_runtime.kubernetes.resources import DISRUPTION_BUDGETS
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.manifests.objects import Capabilities, run_objects
from elastic_training.settings import Pods, PodShape, SecretRef, Volume
from elastic_training.settings.pods import Hardware
from tests.kubernetes_namespace import Namespace

pytestmark = pytest.mark.timeout(240)
ZONE = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]}
SHAPE = PodShape(
    resources={"requests": {"cpu": "100m", "memory": 1e8}, "limits": {"memory": "1Gi"}},
    node_selector={"pool": "ml"},
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ZONE]}}},
    tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    template={"spec": {"initContainers": [{"name": "fetch", "image": "fetch:1"}], "terminationGracePeriodSeconds": 5}},
)
EVERYTHING = Pods(
    image="registry/trainer:1",
    image_pull_policy="Always",
    image_pull_secrets=["registry"],
    command=["/init"],
    worker_service_account="reader",
    env={"NCCL_DEBUG": "INFO", "COUNT": 3},  # type: ignore[dict-item]  # numbers are taken too
    secrets=[
        SecretRef("a"),
        SecretRef("b", key="k", env="K"),
        SecretRef("c", mount="/c"),
        SecretRef("c", key="k", mount="/k"),
    ],
    volumes=[
        Volume("/claim", claim="data", read_only=True, sub_path="mnist"),
        Volume("/secret", secret="a"),
        Volume("/config", config_map="a"),
        Volume("/scratch", empty_dir="1Gi"),
        Volume("/more", empty_dir=True),
        Volume("/raw", raw={"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
    ],
    labels={"team": "vision"},
    annotations={"example.com/note": "any text, ünïcode too"},
    scheduler_name="another",
    queue="team",
    launcher=SHAPE,
    worker=SHAPE,
    hardware=Hardware(gpus=2, gpu_resource="amd.com/gpu", shm="2Gi", spot=True),
)


@pytest.mark.parametrize("pods", [Pods(image="trainer"), EVERYTHING], ids=["nothing set", "everything set"])
def test_the_server_takes_every_manifest_and_knows_every_field(namespace: Namespace, pods: Pods) -> None:
    served = namespace.ask(lambda client: client.serves(DISRUPTION_BUDGETS))
    capabilities = Capabilities(disruption_budgets=served)
    connection.forget()
    spec = RunSpec(name="run-" + "x" * 48, uid=uuid4().hex, command=("python", "train.py"))
    objects = run_objects(spec, "me", pods, namespace=namespace.name, capabilities=capabilities)
    for manifest in (
        objects.root(),
        *objects.first(str(uuid4()), {"ca.crt": b"a certificate"}),
        *objects.rest(str(uuid4()), "10.96.7.7"),
    ):
        refusal = namespace.refusal(manifest)
        assert not refusal, f"{manifest['kind']}: {refusal}"


def test_the_check_can_fail(namespace: Namespace) -> None:
    manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dataa": {}}
    assert "dataa" in namespace.refusal(manifest)
