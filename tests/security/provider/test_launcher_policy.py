"""A launcher whose image is somebody else's, with the rights of ``deploy/rbac.yaml``: what admission leaves of them.

The rules of ``deploy/launcher-policy.yaml`` are evaluated as the API server does it, by another implementation of CEL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml

from elastic_runtime.pool.pods.objects import PoolNames, PoolPart
from elastic_runtime.pool.pods.objects import labels as pool_labels
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames
from elastic_training.identity.naming import MAX_LENGTH
from elastic_training.settings import Pods
from elastic_training.settings.pods import LAUNCHER_ACCOUNT
from tests.unit.provider.manifests_bench import everything, objects_of, pods_of

DEPLOY = Path(__file__).parents[3] / "deploy"
POLICIES = {
    each["metadata"]["name"]: each["spec"]
    for each in yaml.safe_load_all((DEPLOY / "launcher-policy.yaml").read_text())
    if each["kind"] == "ValidatingAdmissionPolicy"
}
COST = "controller.kubernetes.io/pod-deletion-cost"
MINE, OTHER = "nightly-train-0123456789", "weekly-train-9876543210"
LONGEST = f"{'x' * (MAX_LENGTH - 11)}-0123456789"
POD_NAME = "authentication.kubernetes.io/pod-name"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Kubernetes' own, beside CEL's: https://kubernetes.io/docs/reference/using-api/cel/
    "substring": lambda text, start, end: celpy.celtypes.StringType(text[int(start) : int(end)]),
    "replace": lambda text, old, new: celpy.celtypes.StringType(text.replace(old, new)),
    "split": lambda text, by: celpy.celtypes.ListType(map(celpy.celtypes.StringType, text.split(by))),
    "join": lambda texts, by: celpy.celtypes.StringType(by.join(texts)),
}
_environment = celpy.Environment()
_programs: dict[str, celpy.Runner] = {}


def evaluate(expression: str, known: Mapping[str, Any]) -> Any:
    if expression not in _programs:
        _programs[expression] = _environment.program(_environment.compile(expression), functions=FUNCTIONS)
    found = _programs[expression].evaluate({**known})
    assert not isinstance(found, celpy.CELEvalError), found
    return found


def refusals(policy: str, request: dict[str, Any], **objects: Any) -> list[str] | None:
    """What a policy says; None: the request is none of its business."""
    spec = POLICIES[policy]
    known = {name: celpy.json_to_cel(each) for name, each in {"request": request, **objects}.items()}
    if not all(evaluate(each["expression"], known) for each in spec["matchConditions"]):
        return None
    variables: dict[str, Any] = {}
    for each in spec["variables"]:
        variables[each["name"]] = evaluate(
            each["expression"], {**known, "variables": celpy.celtypes.MapType(_named(variables))}
        )
    known["variables"] = celpy.celtypes.MapType(_named(variables))
    return [
        str(evaluate(rule["messageExpression"], known)) if "messageExpression" in rule else rule["message"]
        for rule in spec["validations"]
        if not evaluate(rule["expression"], known)
    ]


def _named(variables: Mapping[str, Any]) -> dict[Any, Any]:
    return {celpy.celtypes.StringType(name): value for name, value in variables.items()}


def launcher_of(run: str) -> str:
    """Its pod, as the Job's controller calls it: 58 characters, and five of its own."""
    return f"{ObjectNames(run).launcher}-"[:58] + "x7k2p"


def asked(
    operation: str, resource: str, name: str, *, run: str = MINE, pod: str | None = "", sub: str = "", **more: Any
) -> dict[str, Any]:
    """A request of a run's launcher."""
    extra = {} if pod is None else {"extra": {POD_NAME: [pod or launcher_of(run)]}}
    return {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": resource},
        "subResource": sub,
        "name": name,
        "namespace": "training",
        "userInfo": {"username": f"system:serviceaccount:training:{LAUNCHER_ACCOUNT}", **extra},
        **more,
    }


def labelled(run: str | None, part: str = "root") -> dict[str, Any]:
    labels = {} if run is None else {"labels": {runobjects.RUN_LABEL: run, runobjects.PART_LABEL: part}}
    return {"metadata": {"name": "any", **labels}}


def worker_pod(run: str, image: str = "team/script:1", **annotations: str) -> dict[str, Any]:
    metadata = {**labelled(run, "worker")["metadata"], "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [{"name": "worker", "image": image}]}}


def owned(run: str, part: str, **annotations: str) -> dict[str, Any]:
    """A ConfigMap or pod of a run, as its creator makes it."""
    made = labelled(run, part)
    made["metadata"]["labels"][runobjects.UID_LABEL] = "u1"
    root = {"apiVersion": "v1", "kind": "ConfigMap", "name": run, "uid": "u", "blockOwnerDeletion": True}
    made["metadata"] |= {"ownerReferences": [] if part == "root" else [root], "annotations": annotations}
    return made


def changed(thing: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**thing, "metadata": {**thing["metadata"], **metadata}}


def served(run: str) -> dict[str, Any]:
    """A worker's pod that a Service of somebody else sends its clients to."""
    pod = worker_pod(run)
    pod["metadata"]["labels"] |= {"app": "database"}
    return pod


def worker_set(limit: str, request: str = "1Gi", cpu: str = "1", **container: Any) -> dict[str, Any]:
    """The ReplicaSet of workers with so much memory."""
    made = labelled(MINE, "worker")
    resources = {"requests": {"memory": request, "cpu": cpu}, "limits": {"memory": limit}}
    worker = {"name": "worker", "image": "team/script:1", "resources": resources, **container}
    template = {"metadata": made["metadata"], "spec": {"containers": [worker], "serviceAccountName": "default"}}
    return {**made, "spec": {"replicas": 2, "selector": {}, "template": template}}


def with_memory(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    return {**pod, "spec": {"containers": [{**container, "resources": {"limits": {"memory": "3Gi"}}}]}}


def with_template(made: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = made["spec"]["template"]
    return {**made, "spec": {**made["spec"], "template": {**template, "spec": {**template["spec"], **spec}}}}


def bound(request: dict[str, Any], old: Any = None, new: Any = None) -> list[str] | None:
    """What the policy says that binds a launcher to its run."""
    deleted = request["operation"] == "DELETE"
    return refusals("elastic-training-launcher", request, oldObject=old, object=None if deleted else new or old)


@pytest.mark.parametrize("run", [MINE, LONGEST, *(LONGEST[cut:] for cut in (1, 2, 3, 4, 5))], ids=len)
def test_a_launcher_can_do_its_work(run: str) -> None:
    names = ObjectNames(run)
    status = owned(run, "status")
    written = {
        **owned(run, "status", **{runobjects.TERM: "{}", runobjects.HEADLINE: "{}"}),
        "data": {"status.json": "{}"},
    }
    for old, new in ((status, written), (written, written)):
        assert bound(asked("UPDATE", "configmaps", names.status, run=run), old, new) == []
    assert bound(asked("DELETE", "configmaps", names.root, run=run), labelled(run)) == []
    for name in (names.worker, names.jupyter):
        assert bound(asked("UPDATE", "replicasets", name, run=run, sub="scale"), labelled(None)) == []
    for operation in ("DELETE", "UPDATE"):
        pod = asked(operation, "pods", f"{names.worker}-abcde", run=run)
        assert bound(pod, worker_pod(run), worker_pod(run, **{COST: "100"})) == []
    resize = asked("UPDATE", "pods", f"{names.worker}-abcde", run=run, sub="resize")
    assert bound(resize, worker_pod(run), with_memory(worker_pod(run))) == []


POOL = PoolNames("team-a")


def test_the_keeper_of_a_pool_can_do_its_work_and_nothing_to_a_run() -> None:
    keeper = f"{POOL.keeper}-x7k2p"
    status = owned(POOL.root, "status")
    assert bound(asked("UPDATE", "configmaps", POOL.status, pod=keeper), status, {**status, "data": {"a": "{}"}}) == []
    assert bound(asked("UPDATE", "replicasets", POOL.worker, pod=keeper, sub="scale"), labelled(None)) == []
    pod = asked("UPDATE", "pods", f"{POOL.worker}-abcde", pod=keeper)
    assert bound(pod, worker_pod(POOL.root), worker_pod(POOL.root, **{COST: "100"})) == []
    assert bound(asked("UPDATE", "replicasets", f"{MINE}-worker", pod=keeper, sub="scale"), labelled(None))
    assert bound(asked("DELETE", "pods", "any", pod=keeper), labelled(MINE, "worker"))
    assert bound(asked("UPDATE", "replicasets", POOL.worker, sub="scale"), labelled(None)), "a launcher of its runs"
    assert bound(asked("DELETE", "pods", f"{POOL.worker}-abcde"), worker_pod(POOL.root))


def test_the_launcher_of_a_run_in_a_pool_can_say_how_many_workers_it_has() -> None:
    root = {**owned(MINE, "root", **{runobjects.OWNER: "mine"}), "immutable": True}
    annotations = {**root["metadata"]["annotations"], runobjects.SIZE: "0"}
    assert bound(OF_ROOT, root, changed(root, annotations=annotations)) == []
    assert bound(OF_ROOT, root, changed(root, annotations={**annotations, runobjects.OWNER: "another"}))
    assert bound(OF_ROOT, root, {**changed(root, annotations=annotations), "immutable": False})


def test_it_can_give_its_workers_more_memory() -> None:
    request = asked("UPDATE", "replicasets", f"{MINE}-worker")
    assert bound(request, worker_set("2Gi"), worker_set("3Gi", "1536Mi")) == []
    assert bound(request, worker_set("2Gi"), worker_set("2Gi")) == []


STATUS, ROOT = owned(MINE, "status"), owned(MINE, "root", **{runobjects.OWNER: "mine"})
HELD = changed(worker_pod(MINE), finalizers=["example.com/never"])
VICTIMS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": OTHER, "uid": "other", "blockOwnerDeletion": True}]
SET, OF_SET = worker_set("2Gi"), asked("UPDATE", "replicasets", f"{MINE}-worker")
OF_STATUS, OF_ROOT = asked("UPDATE", "configmaps", f"{MINE}-status"), asked("UPDATE", "configmaps", MINE)


ATTACKS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "another run's status": (asked("UPDATE", "configmaps", f"{OTHER}-status"), labelled(OTHER, "status"), None),
    "another run's root": (asked("DELETE", "configmaps", OTHER), labelled(OTHER), None),
    "a ConfigMap of no run": (asked("UPDATE", "configmaps", "settings"), labelled(None), None),
    "a new ConfigMap": (asked("CREATE", "configmaps", "mine"), None, labelled(MINE)),
    "a ConfigMap that is given away": (asked("UPDATE", "configmaps", MINE), labelled(MINE), labelled(OTHER)),
    "a ConfigMap that is taken": (asked("UPDATE", "configmaps", OTHER), labelled(OTHER), labelled(MINE)),
    "labels that go": (asked("UPDATE", "configmaps", MINE), labelled(MINE), labelled(None)),
    "another run's size": (asked("UPDATE", "replicasets", f"{OTHER}-worker", sub="scale"), labelled(None), None),
    "a ReplicaSet of no run": (asked("UPDATE", "replicasets", "web", sub="scale"), labelled(None), None),
    "another run's worker": (asked("DELETE", "pods", f"{OTHER}-worker-abcde"), labelled(OTHER, "worker"), None),
    "a pod of no run": (asked("DELETE", "pods", "web-abcde"), labelled(None), None),
    "its own worker's image": (asked("UPDATE", "pods", "any"), worker_pod(MINE), worker_pod(MINE, "evil:1")),
    "another run's worker's cost": (
        asked("UPDATE", "pods", "any"), worker_pod(OTHER), worker_pod(OTHER, **{COST: "1"})),
    "a worker that becomes another's": (asked("UPDATE", "pods", "any"), worker_pod(MINE), worker_pod(OTHER)),
    "a worker that a Service selects": (asked("UPDATE", "pods", "any"), worker_pod(MINE), served(MINE)),
    "another launcher": (asked("DELETE", "pods", f"{MINE}-launcher-abcde"), labelled(MINE, "launcher"), None),
    "a token of no pod": (asked("UPDATE", "configmaps", MINE, pod=None), labelled(MINE), None),
    "the token of another pod": (asked("UPDATE", "configmaps", MINE, pod=f"{MINE}-worker-abcde"), labelled(MINE), None),
    "a status that blocks another run's deletion": (OF_STATUS, STATUS, changed(STATUS, ownerReferences=VICTIMS)),
    "a status of no owner": (OF_STATUS, STATUS, changed(STATUS, ownerReferences=[])),
    "a status that cannot be deleted": (OF_STATUS, STATUS, changed(STATUS, finalizers=["example.com/never"])),
    "a status of another incarnation": (
        OF_STATUS, STATUS, changed(STATUS, labels={**STATUS["metadata"]["labels"], runobjects.UID_LABEL: "u2"})),
    "a status that becomes a root": (OF_STATUS, STATUS, owned(MINE, "root")),
    "a status that cannot be written": (OF_STATUS, STATUS, {**STATUS, "immutable": True}),
    "a status with an owner": (OF_STATUS, STATUS, changed(STATUS, annotations={runobjects.OWNER: "another"})),
    "its root's owner": (OF_ROOT, ROOT, changed(ROOT, annotations={runobjects.OWNER: "another"})),
    "its root's annotations": (OF_ROOT, ROOT, changed(ROOT, annotations={})),
    "its root's data": (OF_ROOT, ROOT, {**ROOT, "data": {"spec.json": "{}"}}),
    "its root that cannot be deleted": (OF_ROOT, ROOT, changed(ROOT, finalizers=["example.com/never"])),
    "its own worker that cannot be deleted": (asked("UPDATE", "pods", "any"), worker_pod(MINE), HELD),
    "its own worker that a finalizer held": (asked("UPDATE", "pods", "any"), HELD, worker_pod(MINE)),
    "its own worker that blocks another run's deletion": (
        asked("UPDATE", "pods", "any"), worker_pod(MINE), changed(worker_pod(MINE), ownerReferences=VICTIMS)),
    "its own worker's annotations": (asked("UPDATE", "pods", "any"), worker_pod(MINE), worker_pod(MINE, safe="no")),
    "its own ReplicaSet": (asked("UPDATE", "replicasets", f"{MINE}-worker"), labelled(MINE), None),
    "its own workers' image": (OF_SET, SET, worker_set("3Gi", image="evil:1")),
    "its own workers' command": (OF_SET, SET, worker_set("3Gi", command=["evil"])),
    "its own workers' processors": (OF_SET, SET, worker_set("3Gi", cpu="64")),
    "its own workers' account": (OF_SET, SET, with_template(SET, serviceAccountName="elastic-training-launcher")),
    "a volume of its own workers": (OF_SET, SET, with_template(SET, volumes=[{"hostPath": {"path": "/"}}])),
    "another container of its own workers": (OF_SET, SET, with_template(SET, containers=[
        *SET["spec"]["template"]["spec"]["containers"], {"name": "evil", "image": "evil:1"}])),
    "no container of its own workers": (OF_SET, SET, with_template(SET, containers=[])),
    "its own workers' selector": (OF_SET, SET, {**SET, "spec": {**SET["spec"], "selector": {"matchLabels": {}}}}),
    "its own ReplicaSet's owner": (OF_SET, SET, changed(SET, ownerReferences=VICTIMS)),
    "another run's workers' memory": (
        asked("UPDATE", "replicasets", f"{OTHER}-worker"), worker_set("2Gi"), worker_set("3Gi")),
    "another run's worker's memory": (
        asked("UPDATE", "pods", "any", sub="resize"), worker_pod(OTHER), with_memory(worker_pod(OTHER))),
    "its own launcher's memory": (
        asked("UPDATE", "pods", "any", sub="resize"), labelled(MINE, "launcher"), labelled(MINE, "launcher")),
    "a name that begins alike": (asked("UPDATE", "configmaps", MINE[:-1]), labelled(MINE[:-1]), None),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "old", "new"), ATTACKS.values(), ids=ATTACKS)
def test_it_can_do_nothing_to_others(request_: dict[str, Any], old: Any, new: Any) -> None:
    found = bound(request_, old, new)
    assert found
    assert all(each.isprintable() for each in found)


def test_others_requests_are_not_its_business() -> None:
    request = asked("UPDATE", "configmaps", OTHER)
    for username in ("system:serviceaccount:airflow:worker", f"system:serviceaccount:other:{LAUNCHER_ACCOUNT}"):
        request["userInfo"]["username"] = username
        assert bound(request, labelled(OTHER)) is None


LISTED = "registry/launcher:1\nregistry/launcher@sha256:00 \n"


def images(pod: Any, old: Any = None, listed: str | None = LISTED) -> list[str] | None:
    """What the policy says that binds launchers to the images in their namespace's annotation."""
    request = {"operation": "UPDATE" if old else "CREATE", "namespace": "training"}
    annotations = {} if listed is None else {"annotations": {"elastic-training/launcher-images": listed}}
    namespace = {"metadata": {"name": "training", **annotations}}
    return refusals("elastic-training-launcher-images", request, object=pod, oldObject=old, namespaceObject=namespace)


def test_only_the_images_that_are_listed_are_launchers() -> None:
    ours, theirs = (
        pods_of(objects_of(Pods(image="team/script:1", launcher_image=image)))[0]
        for image in ("registry/launcher:1", None)
    )
    assert images(ours) == []
    assert images(theirs) == [
        "a launcher may have only the images in the annotation elastic-training/launcher-images of its namespace, "
        "and this one has team/script:1. Name one of them with launcher_image"
    ]
    assert images(theirs, old=theirs) == [], "pods that are there go on"
    assert images(theirs, old=ours), "an image that is put into the place of another"
    beside = {**ours, "spec": {**ours["spec"], "ephemeralContainers": [{"image": "team/script:1"}]}}
    assert images(beside, old=ours), "a container that is put beside it"
    assert images({**ours, "spec": {**ours["spec"], "initContainers": [{"image": "team/script:1"}]}})
    assert images(ours, listed=""), "an empty list"
    assert images(theirs, listed=None) == [], "no list"
    assert images(pods_of(objects_of(Pods(image="team/script:1")))[1]) is None, "workers have no rights"


def test_the_list_is_found_whatever_happened_to_the_policies() -> None:
    # An API server finds no ConfigMap for a policy any more, once the binding of one with parameters was deleted.
    assert not any("paramKind" in policy for policy in POLICIES.values())


def test_every_right_of_a_launcher_to_change_something_is_bound() -> None:
    files = [DEPLOY / f"{name}.yaml" for name in ("rbac", "rbac-deletion-cost", "rbac-grow-memory")]
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Role"]
    roles = {each["metadata"]["name"]: each["rules"] for each in documents}
    roles.pop("elastic-training-airflow")
    rules = [rule for each in roles.values() for rule in each]
    changed = {
        (group, resource)
        for rule in rules
        if set(rule["verbs"]) - {"get", "list", "watch"}
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    bound = {
        (group, resource)
        for rule in POLICIES["elastic-training-launcher"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"UPDATE", "DELETE"} <= set(rule["operations"])
    }
    assert changed <= bound


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) == {"matchExpressions"}
    assert all(each["operator"] == "In" for each in selector["matchExpressions"])
    return all(labels.get(each["key"]) in each["values"] for each in selector["matchExpressions"])


def test_the_network_policy_is_of_launchers_and_leads_to_the_run_and_to_the_api_server() -> None:
    policy = yaml.safe_load((DEPLOY / "launcher-network.yaml").read_text())
    launcher, worker = (each["metadata"]["labels"] for each in pods_of(objects_of()))
    keeper, host = (pool_labels("team-a", "uid", part) for part in (PoolPart.KEEPER, PoolPart.HOST))
    confined = [selects(policy["spec"]["podSelector"], each) for each in (launcher, keeper, worker, host)]
    assert confined == [True, True, False, False]
    [run] = [to["podSelector"] for rule in policy["spec"]["egress"] for to in rule.get("to", ()) if "podSelector" in to]
    assert all(selects(run, each) for each in (launcher, keeper, worker, host))
    assert not selects(run, {"app": "database"})
    closed = {
        each
        for rule in policy["spec"]["egress"]
        for to in rule.get("to", ())
        for each in to.get("ipBlock", {}).get("except", ())
    }
    assert {"169.254.0.0/16", "100.100.100.200/32"} <= closed
    assert all(re.fullmatch(r"[0-9a-f.:]+/\d+", each) for each in closed)
    assert everything(objects_of())["NetworkPolicy network"]["spec"]["policyTypes"] == ["Ingress"], "they add up"
