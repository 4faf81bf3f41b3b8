from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime import runobjects
from elastic_runtime.agent.__main__ import parse_arguments
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import RunSpec, Timing, WorkersSpec
from elastic_training.clusters.kubernetes.manifests import Capabilities, RunObjects, pods_digest, render, run_objects
from elastic_training.clusters.kubernetes.placement import SPOT_LABELS
from elastic_training.naming import run_name
from elastic_training.pods import Hardware, Pods, PodShape, SecretRef, Volume
from tests.examples import costly

SPEC = RunSpec(
    name=run_name("digits", "manual", "train"),
    uid="5f0c" * 8,
    command=("python", "train.py"),
    workers=WorkersSpec(1, 3, 5, 2),
    timing=Timing(leave_grace=30, stop_grace=10),
)
ROOT_UID = "7f1f4f7e-0000-4000-8000-000000000000"
TLS = {name: name.encode() for name in ("ca.crt", "launcher.crt", "launcher.key", "agent.crt", "agent.key")}

words = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
amounts = st.sampled_from(["1", "500m", "2Gi", "1.5"])
volumes = st.one_of(
    st.builds(lambda name, read_only: {"claim": name, "read_only": read_only}, words, st.booleans()),
    st.builds(lambda name, path: {"secret": name, "sub_path": path}, words, words),
    st.builds(lambda name: {"config_map": name}, words),
    st.builds(lambda size: {"empty_dir": size}, st.sampled_from([True, "10Gi"])),
    st.builds(lambda name: {"raw": {"csi": {"driver": name}}}, words),
)
shapes = st.builds(
    PodShape,
    resources=st.none()
    | st.fixed_dictionaries({"limits": st.dictionaries(st.sampled_from(["cpu", "memory"]), amounts)}),
    node_selector=st.dictionaries(words, words, max_size=2),
    affinity=st.none()
    | st.builds(
        lambda keys: {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in keys]
                }
            }
        },
        st.lists(words, min_size=1, max_size=3),
    ),
    tolerations=st.lists(st.builds(lambda key: {"key": key, "operator": "Exists"}, words), max_size=2),
)
any_pods = st.builds(
    Pods,
    image=st.just("registry/trainer:1"),
    image_pull_policy=st.sampled_from([None, "Always"]),
    image_pull_secrets=st.lists(words, max_size=2),
    env=st.dictionaries(words, st.text() | st.integers(), max_size=2),
    secrets=st.lists(
        st.builds(SecretRef, words) | st.builds(lambda a, b: SecretRef(a, key=b, env=b.upper()), words, words),
        max_size=2,
    ),
    volumes=st.lists(volumes, max_size=4).map(
        lambda sources: [Volume(f"/mnt/{index}", **source) for index, source in enumerate(sources)]
    ),
    labels=st.dictionaries(words, words, max_size=2),
    annotations=st.dictionaries(words, st.text(), max_size=2),
    priority_class=st.none() | words,
    scheduler_name=st.none() | words,
    queue=st.none() | words,
    run_as_user=st.sampled_from([None, 1000, "2000"]),
    launcher=shapes,
    worker=shapes,
    hardware=st.builds(
        Hardware,
        gpus=st.integers(0, 8),
        gpu_resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
        shm=st.sampled_from([None, "2Gi"]),
        spot=st.booleans(),
    ),
)
names = st.builds(run_name, *(st.text(min_size=1, max_size=80),) * 3, st.integers(-1, 10**6))


def objects_of(pods: Pods | None = None, spec: RunSpec = SPEC, **more: Any) -> RunObjects:
    return run_objects(spec, "the first try", pods or Pods(image="registry/trainer:1"), namespace="training", **more)


def everything(objects: RunObjects) -> dict[str, dict[str, Any]]:
    made = (objects.root(), *objects.first(ROOT_UID, TLS), *objects.rest(ROOT_UID, "10.96.7.7"))
    found = {f"{each['kind']} {each['metadata']['labels'][runobjects.PART_LABEL]}": each for each in made}
    assert len(found) == len(made)
    return found


def pods_of(objects: RunObjects) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pod templates of launcher and workers."""
    found = everything(objects)
    return found["Job launcher"]["spec"]["template"], found["ReplicaSet worker"]["spec"]["template"]


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(pod["spec"]["containers"][0])


def not_restricted(spec: dict[str, Any]) -> Iterator[str]:
    """What Pod Security "restricted" (v1.34) finds wrong with a pod."""
    context = spec.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    kinds = {key for volume in spec.get("volumes", ()) for key in volume if key != "name"}
    yield from kinds - {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
    }
    if context.get("sysctls") or context.get("runAsUser") == 0:
        yield "pod's securityContext"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = container.get("securityContext", {})
        effective = {**context, **own}
        if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
            yield f"{container['name']} may be root"
        if effective.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{container['name']} has no seccomp profile"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{container['name']} may gain privileges"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            yield f"{container['name']} has capabilities"
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield f"{container['name']} takes a port of the node"


@costly()
@given(any_pods)
def test_whatever_is_set_every_container_is_restricted(pods: Pods) -> None:
    for pod in pods_of(objects_of(pods)):
        assert list(not_restricted(pod["spec"])) == []


@costly()
@given(any_pods)
def test_whatever_is_set_selectors_find_the_pods_of_this_run_alone(pods: Pods) -> None:
    found = everything(objects_of(pods))
    launcher, worker = pods_of(objects_of(pods))

    def selects(selector: dict[str, str], pod: dict[str, Any]) -> bool:
        return selector.items() <= pod["metadata"]["labels"].items()

    assert found["ReplicaSet worker"]["spec"]["selector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    for selector, whom in (
        (found["Service launcher"]["spec"]["selector"], (True, False)),
        (found["ReplicaSet worker"]["spec"]["selector"]["matchLabels"], (False, True)),
        (found["PodDisruptionBudget worker"]["spec"]["selector"]["matchLabels"], (False, True)),
        (found["NetworkPolicy network"]["spec"]["podSelector"]["matchLabels"], (True, True)),
    ):
        assert (selects(selector, launcher), selects(selector, worker)) == whom
        assert selector[runobjects.UID_LABEL] == SPEC.uid


@costly()
@given(any_pods)
def test_whatever_is_set_the_pods_carry_only_fields_that_pods_have(pods: Pods) -> None:
    from elastic_training.clusters.kubernetes.template import check_fields

    for pod in pods_of(objects_of(pods)):
        check_fields(pod, "pod")


@costly()
@given(any_pods)
def test_what_the_user_has_given_stays_as_it_was(pods: Pods) -> None:
    before = deepcopy(pods)
    assert everything(objects_of(pods)) == everything(objects_of(pods))
    assert pods == before


def test_only_the_same_settings_of_the_pods_have_the_same_digest() -> None:
    pods = Pods(image="registry/trainer:1", env={"A": "1", "B": "2"}, worker=PodShape(resources={"limits": {"cpu": 1}}))
    same = replace(pods, env={"B": "2", "A": "1"})
    others = (replace(pods, image="registry/trainer:2"), replace(pods, worker=PodShape()), replace(pods, env={}))
    assert pods_digest(pods) == pods_digest(same)
    assert len({pods_digest(each) for each in (pods, *others)}) == 4


@given(names)
def test_any_run_has_valid_names_and_labels(name: str) -> None:
    spec = RunSpec(name=name, uid=SPEC.uid, command=("python",))
    for manifest in everything(objects_of(spec=spec)).values():
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
        for value in manifest["metadata"]["labels"].values():
            assert re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


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
        (volume,) = pod["spec"]["volumes"]
        assert [item["path"] for item in volume["secret"]["items"]] == ["ca.crt", f"{role}.crt", f"{role}.key"]
        assert volume["secret"]["defaultMode"] == 0o440
        assert container_of(pod)["volumeMounts"][0]["mountPath"] == runobjects.TLS_FOLDER


def test_only_the_launcher_talks_to_the_api_server() -> None:
    launcher, worker = pods_of(objects_of())
    assert launcher["spec"]["automountServiceAccountToken"] is True
    assert launcher["spec"]["serviceAccountName"] == "elastic-training-launcher"
    assert worker["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in worker["spec"]
    for pod in (launcher, worker):
        assert pod["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("address", ["10.96.7.7", "fd00:10:96::7"])
def test_the_agent_understands_what_it_is_told(address: str) -> None:
    worker = objects_of().rest(ROOT_UID, address)[-1]["spec"]["template"]
    container = container_of(worker)
    environment = {"POD_NAME": "digits-worker-x7k2p", "NODE": "node-1", "POD_ADDRESS": "127.0.0.1"}
    spoken = [
        re.sub(r"\$\(ELASTIC_TRAINING_(\w+)\)", lambda found: environment[found[1]], word) for word in container["args"]
    ]
    assert tuple(spoken[:3]) == runobjects.AGENT_COMMAND
    settings = parse_arguments(spoken[3:])
    assert (settings.worker, settings.node, settings.interface) == ("digits-worker-x7k2p", "node-1", "lo")
    assert settings.launcher == (address, runobjects.LAUNCHER_PORT)
    assert (settings.slots, settings.grace, str(settings.tls)) == (2, 30.0, runobjects.TLS_FOLDER)
    assert settings.redial
    assert {entry["name"].removeprefix("ELASTIC_TRAINING_") for entry in container["env"]} == set(environment)


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


class TestSettings:
    def test_gpus_are_limits_beside_what_else_is_asked_for(self) -> None:
        pods = Pods(
            image="t:1",
            hardware=Hardware(gpus=2, shm="2Gi"),
            worker=PodShape(resources={"requests": {"cpu": 4}, "limits": {"memory": "16Gi"}}),
        )
        launcher, worker = pods_of(objects_of(pods))
        assert container_of(worker)["resources"] == {
            "requests": {"cpu": "4"},
            "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
        }
        assert "nvidia.com/gpu" not in str(launcher)
        shm = next(volume for volume in worker["spec"]["volumes"] if volume["name"].endswith("shm"))
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}

    def test_secrets_and_volumes_are_the_workers(self) -> None:
        pods = Pods(
            image="t:1",
            env={"NCCL_DEBUG": "INFO"},
            secrets=[SecretRef("all"), SecretRef("aws", key="id", env="AWS_ID"), SecretRef("gcp", mount="/gcp")],
            volumes=[Volume("/data", claim="data", read_only=True, sub_path="mnist")],
        )
        launcher, worker = pods_of(objects_of(pods))
        container = container_of(worker)
        assert container["envFrom"] == [{"secretRef": {"name": "all"}}]
        assert {"name": "AWS_ID", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "id"}}} in container["env"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert mounts["/data"]["readOnly"] is mounts["/gcp"]["readOnly"] is True
        assert mounts["/data"]["subPath"] == "mnist"
        named = {volume["name"]: volume for volume in worker["spec"]["volumes"]}
        assert named[mounts["/data"]["name"]]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}
        assert named[mounts["/gcp"]["name"]]["secret"]["secretName"] == "gcp"
        assert "aws" not in str(launcher)
        assert "/data" not in str(launcher)
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in container_of(launcher)["env"]

    def test_a_queue_holds_the_launchers_job_and_each_worker_pod(self) -> None:
        found = everything(objects_of(Pods(image="t:1", queue="team")))
        launcher, worker = pods_of(objects_of(Pods(image="t:1", queue="team")))
        label = "kueue.x-k8s.io/queue-name"
        assert found["Job launcher"]["metadata"]["labels"][label] == worker["metadata"]["labels"][label] == "team"
        assert label not in launcher["metadata"]["labels"]
        assert label not in found["ReplicaSet worker"]["metadata"]["labels"]

    def test_the_cluster_may_choose_the_user(self) -> None:
        pods = Pods(image="t:1", run_as_user=None, run_as_group=None, fs_group=None)
        context = pods_of(objects_of(pods))[1]["spec"]["securityContext"]
        assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}

    def test_annotations_of_a_user_go_before_ours(self) -> None:
        pods = Pods(image="t:1", annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"})
        launcher, worker = pods_of(objects_of(pods))
        assert launcher["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
        assert launcher["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
        assert "karpenter.sh/do-not-disrupt" not in worker["metadata"]["annotations"]

    def test_an_entrypoint_of_ones_own_keeps_the_arguments(self) -> None:
        container = container_of(pods_of(objects_of(Pods(image="t:1", command=["/init", "--"])))[0])
        assert container["command"] == ["/init", "--"]
        assert tuple(container["args"]) == runobjects.LAUNCHER_COMMAND


class TestPlacement:
    SPOT = Pods(image="t:1", hardware=Hardware(spot=True))

    @pytest.mark.parametrize("label", SPOT_LABELS, ids=lambda label: label.key)
    def test_spot_workers_go_to_any_clouds_spot_nodes_and_the_launcher_to_none(self, label: Any) -> None:
        launcher, worker = pods_of(objects_of(self.SPOT))
        spot, ordinary = {label.key: label.values[0]}, {"kubernetes.io/os": "linux"}
        assert fits(worker, spot)
        assert not fits(worker, ordinary)
        assert fits(launcher, ordinary)
        assert not fits(launcher, spot)
        assert any(toleration.get("key") == label.key for toleration in worker["spec"]["tolerations"])

    def test_what_the_user_requires_is_required_still(self) -> None:
        zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}}
        shape = PodShape(affinity=affinity, node_selector={"pool": "ml"})
        launcher, worker = pods_of(
            objects_of(Pods(image="t:1", launcher=shape, worker=shape, hardware=Hardware(spot=True)))
        )
        spot = {"karpenter.sh/capacity-type": "spot", "pool": "ml"}
        assert fits(worker, {**spot, "zone": "b"})
        assert not fits(worker, {**spot, "zone": "c"})
        assert not fits(worker, {"karpenter.sh/capacity-type": "spot", "zone": "b"})
        assert fits(launcher, {"zone": "a", "pool": "ml"})
        assert not fits(launcher, {**spot, "zone": "a"})
        assert len(zones[0]["matchExpressions"]) == 1

    def test_a_launcher_that_asks_for_spot_itself_gets_it(self) -> None:
        label = {"cloud.google.com/gke-spot": "true"}
        pods = Pods(image="t:1", launcher=PodShape(node_selector=label), hardware=Hardware(spot=True))
        assert fits(pods_of(objects_of(pods))[0], label)

    def test_pods_leave_a_silent_node_soon_unless_told_otherwise(self) -> None:
        key = "node.kubernetes.io/unreachable"
        mine = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        launcher, worker = pods_of(objects_of(Pods(image="t:1", worker=PodShape(tolerations=[mine]))))

        def patience(pod: dict[str, Any]) -> list[int]:
            return [each["tolerationSeconds"] for each in pod["spec"]["tolerations"] if each["key"] == key]

        assert patience(worker) == [300]
        assert patience(launcher) == [10]


def fits(pod: dict[str, Any], node: dict[str, str]) -> bool:
    """Whether a node with these labels may run the pod, as the scheduler decides."""
    spec = pod["spec"]
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")

    def meets(expression: dict[str, Any]) -> bool:
        value = node.get(expression["key"])
        return {"In": value in expression["values"], "NotIn": value not in expression["values"]}[expression["operator"]]

    wanted = terms is None or any(all(map(meets, term["matchExpressions"])) for term in terms)
    return wanted and spec.get("nodeSelector", {}).items() <= node.items()


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
