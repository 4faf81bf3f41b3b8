"""The objects of a run: what a user's settings make of the pods, and on which nodes they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import RecoverySpec
from elastic_training.clusters.kubernetes.manifests.pod import SPOT
from elastic_training.settings import Pods, PodShape, SecretRef, Volume
from elastic_training.settings.pods import Hardware
from tests.unit.provider.manifests_bench import SPEC, container_of, everything, objects_of, pods_of


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

    def test_memory_that_is_to_grow_needs_a_limit_which_a_template_may_have(self) -> None:
        grows = replace(SPEC, recovery=RecoverySpec(grow_memory=1.5, up_to=64 * 2**30))

        def worker(limit: str | None) -> Any:
            limits = {"limits": {"memory": limit}} if limit else {}
            template = {"spec": {"containers": [{"name": "worker", "resources": limits}]}}
            return pods_of(objects_of(Pods(image="t:1", worker=PodShape(template=template)), grows))[1]

        assert container_of(worker("8Gi"))["resources"] == {"limits": {"memory": "8Gi"}}
        for limit, field in ((None, "recovery.grow_memory"), ("65536Mi", "recovery.up_to")):
            with pytest.raises(InvalidSettings) as refused:
                worker(limit)
            assert refused.value.field == field

    def test_workers_have_a_place_for_the_hostfile_where_mpi_looks(self) -> None:
        launcher, worker = pods_of(objects_of())
        (place,) = (each for each in container_of(worker)["volumeMounts"] if each["mountPath"] == "/etc/mpi")
        (volume,) = (each for each in worker["spec"]["volumes"] if each["name"] == place["name"])
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
        assert "hostfile" not in str(launcher)

    @pytest.mark.parametrize(
        ("hostfile", "mount"), [(None, "/etc/mpi/"), ("/etc/mpi/hostfile", "/etc/mpi"), ("/data/hosts", "/data")]
    )
    def test_a_folder_of_the_users_own_for_it_is_left_alone(self, hostfile: str | None, mount: str) -> None:
        pods = Pods(image="registry/trainer:1", volumes=[Volume(mount, empty_dir=True)])
        _, worker = pods_of(objects_of(pods, replace(SPEC, hostfile=hostfile)))
        mounts = [each["mountPath"] for each in container_of(worker)["volumeMounts"]]
        assert mounts == [runobjects.TLS_FOLDER, runobjects.IDENTITY_FOLDER, mount]

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
    PODS = Pods(image="t:1", hardware=Hardware(spot=True))

    @pytest.mark.parametrize("label", SPOT)
    def test_spot_workers_go_to_any_clouds_spot_nodes_and_the_launcher_to_none(self, label: str) -> None:
        launcher, worker = pods_of(objects_of(self.PODS))
        spot, ordinary = {label: SPOT[label][0]}, {"kubernetes.io/os": "linux"}
        assert fits(worker, spot)
        assert not fits(worker, ordinary)
        assert fits(launcher, ordinary)
        assert not fits(launcher, spot)
        assert any(toleration.get("key") == label for toleration in worker["spec"]["tolerations"])

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

        def max_wait(pod: dict[str, Any]) -> list[int]:
            return [each["tolerationSeconds"] for each in pod["spec"]["tolerations"] if each["key"] == key]

        assert max_wait(worker) == [300]
        assert max_wait(launcher) == [10]


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
