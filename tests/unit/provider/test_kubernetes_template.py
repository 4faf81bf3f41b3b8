from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import V1Affinity, V1Container, V1NodeAffinity, V1Pod, V1PodSpec, V1Toleration

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes.manifests import pod
from elastic_training.settings import Pods, PodShape, Volume
from elastic_training.settings.pods import Hardware
from tests.examples import costly

SPEC = RunSpec(name="digits-train-0123456789", uid="5f0c", command=("python", "train.py"))


def worker(template: Any = None, shape: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    all_pods = {"image": "registry/trainer:1", **more}
    return pod.worker(SPEC, Pods(worker=PodShape(template=template, **(shape or {})), **all_pods), "10.96.7.7")


def container(pod_template: dict[str, Any], name: str = "worker") -> dict[str, Any]:
    (found,) = [each for each in pod_template["spec"]["containers"] if each["name"] == name]
    return dict(found)


@pytest.mark.parametrize("empty", [{"kind": "Pod"}, {"spec": {"containers": []}}, V1Pod(), {"metadata": {"name": "x"}}])
def test_a_template_that_says_nothing_changes_nothing(empty: Any) -> None:
    assert worker(empty) == worker()


@pytest.mark.parametrize("name", ["worker", "base"])
def test_ours_is_laid_over_the_container_of_its_name_and_the_others_run_beside_it(name: str) -> None:
    sidecar = {"name": "metrics", "image": "exporter:1"}
    mine = {"name": name, "image": "theirs:1", "workingDir": "/srv", "args": ["theirs"]}
    made = worker({"spec": {"containers": [sidecar, mine]}})
    assert [each["name"] for each in made["spec"]["containers"]] == ["worker", "metrics"]
    assert container(made)["image"] == "registry/trainer:1"
    assert container(made)["args"] == container(worker())["args"]
    assert container(made)["workingDir"] == "/srv"
    assert container(made, "metrics")["image"] == "exporter:1"
    assert container(made, "metrics")["securityContext"]["allowPrivilegeEscalation"] is False


def test_lists_are_joined_where_kubernetespodoperator_joins_them() -> None:
    made = worker(
        {
            "metadata": {"labels": {"team": "vision", "elastic-training/run": "another"}, "annotations": {"a": "1"}},
            "spec": {
                "volumes": [{"name": "cache", "hostPath": {"path": "/cache"}}],
                "initContainers": [{"name": "fetch", "image": "fetch:1"}],
                "containers": [
                    {
                        "name": "base",
                        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                        "env": [{"name": "A", "value": "template"}, {"name": "B", "value": "template"}],
                    }
                ],
            },
        },
        env={"A": "settings"},
        labels={"owner": "me"},
        volumes=[Volume("/data", claim="data")],
    )
    environment = {each["name"]: each.get("value") for each in container(made)["env"]}
    assert (environment["A"], environment["B"]) == ("settings", "template")
    assert len(container(made)["env"]) == len(environment)
    assert {"/cache", "/data"} < {each["mountPath"] for each in container(made)["volumeMounts"]}
    assert made["metadata"]["labels"]["team"] == "vision"
    assert made["metadata"]["labels"]["owner"] == "me"
    assert made["metadata"]["labels"]["elastic-training/run"] == SPEC.name
    assert made["metadata"]["annotations"] == {"a": "1"}
    assert made["spec"]["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_settings_win_and_what_they_leave_open_is_the_templates() -> None:
    template = {
        "spec": {
            "nodeSelector": {"pool": "template"},
            "priorityClassName": "low",
            "dnsPolicy": "Default",
            "restartPolicy": "Never",
            "containers": [{"name": "base", "resources": {"limits": {"memory": "1Gi"}}}],
        }
    }
    made = worker(template, hardware=Hardware(gpus=1))["spec"]
    assert made["nodeSelector"] == {"pool": "template"}
    assert (made["priorityClassName"], made["dnsPolicy"], made["restartPolicy"]) == ("low", "Default", "Always")
    assert made["containers"][0]["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "1"}
    shape = {"resources": {"limits": {"memory": "2Gi"}}, "node_selector": {"zone": "settings"}}
    made = worker(template, shape, priority_class="high")["spec"]
    assert made["priorityClassName"] == "high"
    assert made["nodeSelector"] == {"zone": "settings"}
    assert made["containers"][0]["resources"] == {"limits": {"memory": "2Gi"}}


def test_spot_is_added_to_what_the_template_says_about_nodes() -> None:
    made = worker({"spec": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}}, hardware=Hardware(spot=True))
    keys = [toleration["key"] for toleration in made["spec"]["tolerations"]]
    assert keys[0] == "dedicated"
    assert "cloud.google.com/gke-spot" in keys


def test_a_template_alone_may_leave_restricted_and_only_where_it_says_so() -> None:
    template = {
        "spec": {
            "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
            "containers": [{"name": "base", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
        }
    }
    made = worker(template)
    assert made["spec"]["securityContext"]["runAsUser"] == 0
    assert made["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(made)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["SYS_PTRACE"]},
    }


def test_a_template_may_be_a_file_a_dict_or_a_model(tmp_path: Path) -> None:
    plain = {"apiVersion": "v1", "kind": "Pod", "spec": {"dnsPolicy": "Default", "containers": [{"name": "side"}]}}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(plain))
    model = V1Pod(spec=V1PodSpec(dns_policy="Default", containers=[V1Container(name="side")]))
    made = worker(plain)
    assert made["spec"]["dnsPolicy"] == "Default"
    assert made == worker(tmp_path / "pod.yaml") == worker(str(tmp_path / "pod.yaml")) == worker(model)


def test_parts_of_a_pod_may_be_models_too() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
    plain = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    }
    node_affinity = V1NodeAffinity(required_during_scheduling_ignored_during_execution=terms)
    models = {
        "affinity": V1Affinity(node_affinity=node_affinity),
        "tolerations": [V1Toleration(key="dedicated", operator="Exists")],
    }
    assert worker(shape=models) == worker(shape=plain)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({"spec": {"dns_policy": "Default"}}, "a pod has no field spec.dns_policy"),
        ({"spec": {"containers": [{"name": "base", "envs": []}, {"name": "a", "imag": "b"}]}}, "containers[1].imag"),
        ({"spec": {"containers": "a"}}, "spec.containers"),
        ({"spec": {"containers": {"name": "a"}}}, "spec.containers"),
        ({"spec": {"terminationGracePeriodSeconds": "long"}}, "long"),
    ],
)
def test_a_field_that_no_pod_has_is_refused_with_its_path(template: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        worker(template)
    assert caught.value.field == "pods.worker.template"
    assert says in caught.value.problem


def test_a_misspelt_field_of_a_setting_is_refused_with_its_path() -> None:
    with pytest.raises(
        InvalidSettings, match=r"pods\.worker: a pod has no field spec\.affinity\.nodeAffinity\.required"
    ):
        worker(shape={"affinity": {"nodeAffinity": {"required": [{"a": 1}]}}})


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "not a YAML"), ("- a", "holds no pod"), ("kind: Job", "holds no pod"), ("a: 1\n---\nb: 2", "not a YAML")],
)
def test_a_file_that_is_no_pod_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=says):
        worker(file)


def test_a_file_that_went_away_after_the_parse_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod")
    pods = Pods(image="t:1", worker=PodShape(template=file))
    file.unlink()
    with pytest.raises(InvalidSettings, match=r"pods\.worker\.template: .* cannot be read"):
        pod.worker(SPEC, pods, "10.96.7.7")


words = st.from_regex("[a-z]{1,6}", fullmatch=True)


@costly()
@given(
    template=st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"labels": st.dictionaries(words, words)}),
            "spec": st.fixed_dictionaries(
                {
                    "nodeSelector": st.dictionaries(words, words),
                    "hostname": words,
                    "containers": st.lists(words, unique=True, max_size=3).map(
                        lambda names: [{"name": name, "image": "side:1"} for name in names]
                    ),
                }
            ),
        }
    ),
    selector=st.dictionaries(words, words),
    labels=st.dictionaries(words, words),
)
def test_merging_loses_nothing_and_ours_wins(
    template: dict[str, Any], selector: dict[str, str], labels: dict[str, str]
) -> None:
    made, ours = worker(template, {"node_selector": selector}, labels=labels), worker(labels=labels)
    assert made["metadata"]["labels"] == {**template["metadata"]["labels"], **ours["metadata"]["labels"]}
    assert made["spec"].get("nodeSelector", {}) == (selector or template["spec"]["nodeSelector"])
    assert made["spec"]["hostname"] == template["spec"]["hostname"]
    beside = [each["name"] for each in template["spec"]["containers"] if each["name"] not in ("worker", "base")]
    assert [each["name"] for each in made["spec"]["containers"]] == ["worker", *beside]
    assert container(made)["args"] == container(ours)["args"]
