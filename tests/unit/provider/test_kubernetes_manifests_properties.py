"""The objects of a run: what holds whatever is set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import RunSpec
from elastic_training.identity.naming import run_name
from elastic_training.settings import Pods, PodShape, SecretRef, Volume
from elastic_training.settings.pods import Hardware
from tests.examples import costly
from tests.unit.provider.manifests_bench import SPEC, everything, objects_of, pods_of

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
    from elastic_training.clusters.kubernetes.manifests.template import check_fields

    for pod in pods_of(objects_of(pods)):
        check_fields(pod, "pod")


@costly()
@given(any_pods)
def test_what_the_user_has_given_stays_as_it_was(pods: Pods) -> None:
    before = deepcopy(pods)
    assert everything(objects_of(pods)) == everything(objects_of(pods))
    assert pods == before


@given(names)
def test_any_run_has_valid_names_and_labels(name: str) -> None:
    spec = RunSpec(name=name, uid=SPEC.uid, command=("python",))
    for manifest in everything(objects_of(spec=spec)).values():
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
        for value in manifest["metadata"]["labels"].values():
            assert re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
