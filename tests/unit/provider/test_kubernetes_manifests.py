"""The objects of a run: what they say to each other, to the launcher, to agents and to people.

What settings make of them: test_kubernetes_manifests_settings. What holds whatever is set:
test_kubernetes_manifests_properties.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from elastic_runtime.agent.__main__ import parse_arguments
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import runobjects
from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes.manifests.objects import Capabilities, pods_digest, render, run_objects
from elastic_training.identity.ownership import Owner
from elastic_training.settings import Pods, PodShape
from tests.unit.provider.manifests_bench import ROOT_UID, SPEC, TLS, container_of, everything, objects_of, pods_of


def test_only_the_same_settings_of_the_pods_have_the_same_digest() -> None:
    pods = Pods(image="registry/trainer:1", env={"A": "1", "B": "2"}, worker=PodShape(resources={"limits": {"cpu": 1}}))
    same = replace(pods, env={"B": "2", "A": "1"})
    others = (replace(pods, image="registry/trainer:2"), replace(pods, worker=PodShape()), replace(pods, env={}))
    assert pods_digest(pods) == pods_digest(same)
    assert len({pods_digest(each) for each in (pods, *others)}) == 4


def test_the_root_carries_spec_and_owner_and_owns_all_others() -> None:
    found = everything(objects_of())
    root = found.pop("ConfigMap root")
    assert root["metadata"]["name"] == SPEC.name
    assert root["metadata"]["annotations"] == {
        runobjects.OWNER: "the first try",
        runobjects.PODS: pods_digest(objects_of().pods),
    }
    assert from_json(RunSpec, root["data"][runobjects.SPEC_KEY]) == SPEC
    assert "ownerReferences" not in root["metadata"]
    for manifest in found.values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", SPEC.name, ROOT_UID)
        assert owner["blockOwnerDeletion"] is True


def test_files_are_in_no_document_that_is_watched_and_the_launcher_alone_finds_them() -> None:
    spec = replace(SPEC, scripts=pack({"train.py": b"print()"}))
    assert spec.scripts is not None
    objects = objects_of(spec=spec)
    found = everything(objects)
    assert spec.scripts.packed not in str(found)
    assert from_json(RunSpec, found["ConfigMap root"]["data"][runobjects.SPEC_KEY]).scripts == spec.scripts.slip()
    assert spec.scripts.digest in render(objects.all())
    for pod, there in zip(pods_of(objects), (True, False), strict=True):
        (tls,) = (each["secret"]["items"] for each in pod["spec"]["volumes"] if "secret" in each)
        assert ({"key": "scripts", "path": "scripts"} in tls) is there


@pytest.mark.parametrize("map_index", [-1, 3])
def test_labels_tell_the_task_as_those_of_the_pod_operator(map_index: int) -> None:
    owner = Owner("nightly", "manual__2026-11-21T08:00:00+00:00", "group.train", map_index, 2, "nonce")
    context: Any = {"ti": owner, "run_id": owner.run_id, "dag": None}
    wanted = KubernetesPodOperator._get_ti_pod_labels(context)
    del wanted["kubernetes_pod_operator"]
    pods = Pods(image="trainer:1", labels={"team": "vision", "dag_id": "mine"})
    for manifest in everything(run_objects(SPEC, owner.text(), pods, namespace="training")).values():
        for each in (manifest, manifest.get("spec", {}).get("template", manifest)):
            labels = each["metadata"]["labels"]
            assert {name: text for name, text in labels.items() if "/" not in name} == {**wanted, "team": "vision"}


def test_objects_are_called_what_both_sides_agreed_on() -> None:
    names = runobjects.ObjectNames(SPEC.name)
    called = {kind: manifest["metadata"]["name"] for kind, manifest in everything(objects_of()).items()}
    assert called == {
        "ConfigMap root": names.root,
        "ConfigMap status": names.status,
        "Secret tls": names.tls,
        "Service launcher": names.launcher,
        "NetworkPolicy network": names.network,
        "PodDisruptionBudget worker": names.worker,
        "Job launcher": names.launcher,
        "ReplicaSet worker": names.worker,
    }


def test_where_policy_is_not_served_there_is_no_budget() -> None:
    found = everything(objects_of(capabilities=Capabilities(disruption_budgets=False)))
    assert "PodDisruptionBudget worker" not in found
    assert len(found) == 7


def test_the_size_of_the_replica_set_is_the_wanted_size() -> None:
    assert everything(objects_of())["ReplicaSet worker"]["spec"]["replicas"] == SPEC.workers.start


def test_each_role_gets_its_own_key_alone() -> None:
    secret = everything(objects_of())["Secret tls"]
    assert {name: base64.b64decode(data) for name, data in secret["data"].items()} == TLS
    for pod, role in zip(pods_of(objects_of()), ("launcher", "agent"), strict=True):
        (volume,) = (each for each in pod["spec"]["volumes"] if "secret" in each)
        assert [item["path"] for item in volume["secret"]["items"]] == ["ca.crt", f"{role}.crt", f"{role}.key"]
        assert volume["secret"]["defaultMode"] == 0o440
        assert container_of(pod)["volumeMounts"][0]["mountPath"] == runobjects.TLS_FOLDER


def test_each_worker_has_a_token_of_its_pod_that_is_of_use_to_its_own_launcher_alone() -> None:
    launcher, worker = pods_of(objects_of())
    [volume] = (each for each in worker["spec"]["volumes"] if "projected" in each)
    [source] = volume["projected"]["sources"]
    assert source["serviceAccountToken"] == {
        "audience": runobjects.audience(SPEC.name, SPEC.uid),
        "expirationSeconds": 3600,
        "path": "token",
    }
    assert volume["projected"]["defaultMode"] == 0o440
    assert worker["spec"]["securityContext"]["fsGroup"] == 1000, "or an agent that is not root could not read it"
    assert not [each for each in launcher["spec"]["volumes"] if "projected" in each]
    another = pods_of(objects_of(spec=replace(SPEC, uid="another")))[1]
    assert str(SPEC.uid) not in str([each for each in another["spec"]["volumes"] if "projected" in each])


def test_the_agent_is_told_where_the_token_is_and_no_other_container_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    template = {"spec": {"containers": [{"name": "base"}, {"name": "beside", "image": "proxy:1"}]}}
    _, worker = pods_of(objects_of(Pods(image="registry/trainer:1", worker=PodShape(template=template))))
    [mount] = [each for each in container_of(worker)["volumeMounts"] if each["name"] == runobjects.IDENTITY_VOLUME]
    beside = next(each for each in worker["spec"]["containers"] if each["name"] == "beside")
    assert "volumeMounts" not in beside
    words = arguments_of(worker)
    for each in container_of(worker)["env"]:
        monkeypatch.setenv(each["name"], each.get("value", ""))
    identity = parse_arguments(words).identity
    assert str(identity) == f"{mount['mountPath']}/token"
    assert mount["readOnly"] is True
    assert parse_arguments([each for each in words if each != "--redial"]).identity is None, "of this machine"


def test_only_the_launcher_talks_to_the_api_server() -> None:
    launcher, worker = pods_of(objects_of())
    assert launcher["spec"]["automountServiceAccountToken"] is True
    assert launcher["spec"]["serviceAccountName"] == "elastic-training-launcher"
    assert worker["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in worker["spec"]
    for pod in (launcher, worker):
        assert pod["spec"]["enableServiceLinks"] is False


FROM_POD = {"POD_NAME": "digits-worker-x7k2p", "NODE": "node-1", "POD_ADDRESS": "127.0.0.1"}


def arguments_of(worker: dict[str, Any]) -> list[str]:
    """Of its agent, as its container gets them."""
    words = container_of(worker)["args"][len(runobjects.AGENT_COMMAND) :]
    return [re.sub(r"\$\(ELASTIC_TRAINING_(\w+)\)", lambda found: FROM_POD[found[1]], word) for word in words]


@pytest.mark.parametrize("address", ["10.96.7.7", "fd00:10:96::7"])
def test_the_agent_understands_what_it_is_told(address: str) -> None:
    worker = objects_of().rest(ROOT_UID, address)[-1]["spec"]["template"]
    container = container_of(worker)
    assert tuple(container["args"][:3]) == runobjects.AGENT_COMMAND
    settings = parse_arguments(arguments_of(worker))
    assert (settings.worker, settings.node, settings.interface) == ("digits-worker-x7k2p", "node-1", "lo")
    assert settings.launcher == (address, runobjects.LAUNCHER_PORT)
    assert (settings.slots, settings.grace, str(settings.tls)) == (2, 30.0, runobjects.TLS_FOLDER)
    assert settings.redial
    told = {entry["name"].removeprefix("ELASTIC_TRAINING_") for entry in container["env"]}
    assert told == {*FROM_POD, "IDENTITY"}


def test_the_launcher_is_told_which_run_and_who_it_is() -> None:
    container = container_of(pods_of(objects_of())[0])
    assert tuple(container["args"]) == runobjects.LAUNCHER_COMMAND
    told = {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]
    }
    assert told == {
        runobjects.RUN_VARIABLE: SPEC.name,
        runobjects.RUN_UID_VARIABLE: SPEC.uid,
        runobjects.NAMESPACE_VARIABLE: "metadata.namespace",
        runobjects.POD_NAME_VARIABLE: "metadata.name",
        runobjects.POD_UID_VARIABLE: "metadata.uid",
        runobjects.POD_ADDRESS_VARIABLE: "status.podIP",
    }


def test_a_worker_outlives_the_time_it_has_to_leave() -> None:
    worker = pods_of(objects_of())[1]
    assert worker["spec"]["terminationGracePeriodSeconds"] > SPEC.timing.leave_grace + SPEC.timing.stop_grace


def test_the_image_is_needed_before_anything_is_made() -> None:
    with pytest.raises(InvalidSettings) as caught:
        run_objects(SPEC, "me", Pods(), namespace="training")
    assert caught.value.field == "image"


class TestRendering:
    def test_a_dry_run_is_yaml_of_every_object_without_keys(self) -> None:
        text = render(objects_of().all())
        documents = list(yaml.safe_load_all(text))
        assert [each["kind"] for each in documents] == [
            *("ConfigMap", "ConfigMap", "Secret", "Service"),
            *("NetworkPolicy", "PodDisruptionBudget", "Job", "ReplicaSet"),
        ]
        assert set(documents[2]["data"].values()) == {"(not shown)"}
        assert f"{SPEC.name}-launcher.training.svc:7077" in text
        assert "&id" not in text

    def test_real_keys_are_not_shown_either(self) -> None:
        made = objects_of().first(ROOT_UID, TLS)
        text = render(made)
        assert base64.b64encode(TLS["agent.key"]).decode() not in text
        assert made[1]["data"]["agent.key"] == base64.b64encode(TLS["agent.key"]).decode()
