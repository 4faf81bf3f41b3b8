"""What an API server admits of a launcher's requests under deploy/launcher-policy.yaml, and what it refuses.

The policies are bound to this module's namespace, under names of their own: other tests run beside this module, and the
cluster's administrator may have applied the file. The launchers' pods are real, so that Kubernetes names them and binds
their tokens to them, but no scheduler places them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from elastic_runtime.errors import ElasticError
from elastic_runtime.kubernetes.objects import Json, Object, Pod
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS, Kind
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.types import RunRef
from elastic_training.identity.naming import MAX_LENGTH
from elastic_training.settings.pods import LAUNCHER_ACCOUNT
from tests.kubernetes.loops import run
from tests.kubernetes.standin import OWNER, StandIn
from tests.kubernetes.wires import as_account
from tests.kubernetes_namespace import IMAGE, REPOSITORY, Namespace
from tests.paced import until

pytestmark = pytest.mark.timeout(420)
DEPLOY = REPOSITORY / "deploy"
POLICIES = Kind("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", Object, namespaced=False)
LISTED = "elastic-training/launcher-images"
COST = "controller.kubernetes.io/pod-deletion-cost"
PENDING = {"scheduler_name": "no-scheduler-of-this-name"}
"""Settings of pods that stay pending."""


@pytest.fixture(scope="module")
def policies(namespace: Namespace) -> Iterator[dict[str, str]]:
    """Names of the policies, by their names in the file."""
    if not namespace.ask(lambda client: client.serves(POLICIES)):
        pytest.skip(f"this API server has no {POLICIES.plural} in {POLICIES.group}, which came with Kubernetes 1.30")
    namespace.kubectl("apply", f"--filename={DEPLOY / 'rbac-deletion-cost.yaml'}")
    documents = list(yaml.safe_load_all((DEPLOY / "launcher-policy.yaml").read_text()))
    names = {each["metadata"]["name"]: f"{each['metadata']['name']}-{namespace.name}" for each in documents}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}}
    for each in documents:
        each["metadata"]["name"] = names[each["metadata"]["name"]]
        if each["kind"].endswith("Binding"):
            each["spec"] |= {"policyName": names[each["spec"]["policyName"]], "matchResources": here}
    text = yaml.safe_dump_all(documents)
    namespace.kubectl("apply", "--filename=-", text=text)
    try:
        yield names
    finally:
        namespace.kubectl("delete", "--filename=-", "--ignore-not-found", text=text)


@dataclass(frozen=True)
class Run:
    """A run whose pods are there, but do not run."""

    ref: RunRef
    launcher: Pod
    """As Kubernetes names it."""
    worker: Pod

    @property
    def names(self) -> ObjectNames:
        """Of its objects."""
        return ObjectNames(self.ref.name)


def begin(standin: StandIn) -> Run:
    """Claim a run, and await its pods."""
    ref = run(standin.cluster(**PENDING).claim(standin.spec(), OWNER)).ref

    def pods() -> dict[str, Pod] | None:
        mine = runobjects.selector(run=ref.name, uid=ref.uid)
        found = standin.namespace.ask(lambda client: client.list(PODS, mine))
        parts = {each.labels[runobjects.PART_LABEL]: each for each in found}
        return parts if {Part.LAUNCHER, Part.WORKER} <= parts.keys() else None

    made = until(pods, f"{ref.name} has its pods", pause=0.3)
    return Run(ref, made[Part.LAUNCHER], made[Part.WORKER])


@dataclass(frozen=True)
class Scene:
    """Two runs under the policies."""

    namespace: Namespace
    mine: Run
    other: Run
    its: str
    """Id of the connection of the first one's launcher."""


@dataclass(frozen=True)
class Request:
    """A change of an object, or its deletion."""

    kind: Kind[Any]
    name: Callable[[Run, Run], str]
    """Of the object, for the launcher's own run and for another one."""
    change: Json | None = None
    """None: it is deleted."""
    part: str | None = None

    def send(self, scene: Scene, connection_id: str) -> str:
        """What the server says to a refusal; empty: it has admitted the request."""
        name = self.name(scene.mine, scene.other)
        try:
            if (change := self.change) is None:
                scene.namespace.ask(lambda client: client.delete(self.kind, name), connection_id)
            else:
                scene.namespace.ask(lambda client: client.patch(self.kind, name, change, self.part), connection_id)
        except ElasticError as error:
            return str(error)
        return ""


def annotated(key: str, text: str | None) -> Json:
    return {"metadata": {"annotations": {key: text}}}


PUBLISHED = {"data": {runobjects.STATUS_KEY: "{}"}}
SCALED = {"spec": {"replicas": 3}}
VICTIM = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "u", "blockOwnerDeletion": True}
OTHERS = "may change only objects of its own run, not"
METADATA = "a launcher may not change the labels, owners and finalizers of an object"
ANNOTATIONS = "a launcher may change"
DATA = "of the ConfigMaps, a launcher may change the data of its run's status alone"
WORKERS = "of the pods, a launcher may change those of workers alone"
SPEC = "of a pod, a launcher may change annotations alone"


def my_status(mine: Run, _other: Run) -> str:
    return mine.names.status


def my_root(mine: Run, _other: Run) -> str:
    return mine.names.root


def my_worker(mine: Run, _other: Run) -> str:
    return mine.worker.name


def other_worker(_mine: Run, other: Run) -> str:
    return other.worker.name


REFUSED: dict[str, tuple[Request, str]] = {
    "another run's status": (Request(CONFIG_MAPS, lambda _, other: other.names.status, PUBLISHED), OTHERS),
    "another run's root": (Request(CONFIG_MAPS, lambda _, other: other.names.root), OTHERS),
    "another run's size": (Request(REPLICA_SETS, lambda _, other: other.names.worker, SCALED, "scale"), OTHERS),
    "another run's worker": (Request(PODS, other_worker), OTHERS),
    "another run's worker's cost": (Request(PODS, other_worker, annotated(COST, "5")), OTHERS),
    "another run's launcher": (Request(PODS, lambda _, other: other.launcher.name), OTHERS),
    "a ConfigMap of no run": (Request(CONFIG_MAPS, lambda *_: "training-code", {"data": {"train.py": ""}}), OTHERS),
    "its launcher": (Request(PODS, lambda mine, _: mine.launcher.name), WORKERS),
    "its status, with a finalizer": (
        Request(CONFIG_MAPS, my_status, {"metadata": {"finalizers": ["example.com/never"]}}), METADATA),
    "its status, with a label of another run": (
        Request(CONFIG_MAPS, my_status, {"metadata": {"labels": {runobjects.RUN_LABEL: "other"}}}), METADATA),
    "its status, with another owner": (
        Request(CONFIG_MAPS, my_status, {"metadata": {"ownerReferences": [VICTIM]}}), METADATA),
    "its status, without an owner": (
        Request(CONFIG_MAPS, my_status, {"metadata": {"ownerReferences": None}}), METADATA),
    "its status, with another annotation": (
        Request(CONFIG_MAPS, my_status, annotated(runobjects.OWNER, "another")),
        f"{ANNOTATIONS} {runobjects.TERM}, {runobjects.HEADLINE} alone"),
    "its status, immutable": (Request(CONFIG_MAPS, my_status, {"immutable": True}), DATA),
    "its status, with binary data": (Request(CONFIG_MAPS, my_status, {"binaryData": {"a": "aGk="}}), DATA),
    "its root's owner": (Request(CONFIG_MAPS, my_root, annotated(runobjects.OWNER, "another")), ANNOTATIONS),
    "its root's lease": (Request(CONFIG_MAPS, my_root, annotated(runobjects.LEASE, None)), ANNOTATIONS),
    "its root, with a status' annotation": (Request(CONFIG_MAPS, my_root, annotated(runobjects.TERM, "{}")), DATA),
    "its worker's spec": (Request(PODS, my_worker, {"spec": {"activeDeadlineSeconds": 3}}), SPEC),
    "its worker's label": (Request(PODS, my_worker, {"metadata": {"labels": {"app": "database"}}}), METADATA),
    "its worker, with another annotation": (Request(PODS, my_worker, annotated("example.com/safe", "no")), ANNOTATIONS),
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(namespace: Namespace, policies: dict[str, str]) -> Iterator[Scene]:
    """The first run has the longest name, which begins with the second one's name."""
    assert policies
    longest = "policy-".ljust(MAX_LENGTH, "x")
    standins = [StandIn(namespace, name) for name in (longest, longest[:-1])]
    try:
        mine, other = map(begin, standins)
        with as_account(namespace, LAUNCHER_ACCOUNT, mine.launcher) as its:
            made = Scene(namespace, mine, other, its)
            request, words = REFUSED["another run's worker's cost"]
            # Policies and rights take effect some time after the server has stored them.
            until(lambda: words in request.send(made, its), "the policy is in force", pause=0.3)
            yield made
    finally:
        for each in standins:
            each.end()
        connection.forget()


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED)
def test_a_launcher_is_refused_what_is_not_its_work(
    scene: Scene, policies: dict[str, str], request_: Request, words: str
) -> None:
    said = request_.send(scene, scene.its)
    assert f"'{policies['elastic-training-launcher']}'" in said
    assert words in said
    if words == OTHERS:
        assert f"the launcher {scene.mine.launcher.name} " in said
        assert f"only objects of its own run, not {request_.name(scene.mine, scene.other)}" in said


def test_a_token_of_no_pod_is_refused(scene: Scene) -> None:
    with as_account(scene.namespace, LAUNCHER_ACCOUNT) as nobodys:
        assert OTHERS in Request(CONFIG_MAPS, my_status, PUBLISHED).send(scene, nobodys)


@pytest.mark.usefixtures("scene")
def test_a_launcher_can_do_its_work(namespace: Namespace, standin: StandIn) -> None:
    mine = begin(standin)

    def ask(kind: Kind[Any], name: str, change: Json | None, part: str | None = None) -> Object:
        changed: Object = namespace.ask(lambda client: client.patch(kind, name, change or {}, part), its)
        return changed

    with as_account(namespace, LAUNCHER_ACCOUNT, mine.launcher) as its:
        annotations = {runobjects.TERM: "{}", runobjects.HEADLINE: "{}"}
        for step in ("begun", "ended"):
            published = {"metadata": {"annotations": annotations}, "data": {runobjects.STATUS_KEY: step}}
            assert ask(CONFIG_MAPS, mine.names.status, published).data == {runobjects.STATUS_KEY: step}
        worker = mine.worker
        for cost in ("5", "100"):
            changed = {"metadata": {"uid": worker.uid, "annotations": {COST: cost}}}
            assert ask(PODS, worker.name, changed).annotations[COST] == cost
        ask(REPLICA_SETS, mine.names.worker, {"spec": {"replicas": 2}}, "scale")
        assert run(standin.cluster().size(mine.ref)) == 2
        namespace.ask(lambda client: client.delete(PODS, worker.name, uid=worker.uid), its)
        ask(REPLICA_SETS, mine.names.worker, {"spec": {"replicas": 0}}, "scale")
        namespace.ask(lambda client: client.delete(CONFIG_MAPS, mine.names.root, propagation="Foreground"), its)
    until(lambda: namespace.left(standin.name) == [], "the run is deleted", max_wait=240)


@pytest.mark.usefixtures("scene")
def test_only_listed_images_get_a_launchers_rights(namespace: Namespace) -> None:
    # The image of this module's launchers is listed, too: the server may obey the list some time after its removal.
    listed = f"registry.example/launcher:1\n{IMAGE}"
    assert not refusal(namespace, "registry.example/script:1")
    namespace.kubectl("annotate", "namespace", namespace.name, f"{LISTED}={listed}")
    try:
        said = until(lambda: refusal(namespace, "registry.example/script:1"), "the list is in force", pause=0.3)
        assert "this one has registry.example/script:1. Name one of them with launcher_image" in said
        assert not refusal(namespace, "registry.example/launcher:1")
        assert not refusal(namespace, "registry.example/script:1", account="default")
    finally:
        namespace.kubectl("annotate", "namespace", namespace.name, f"{LISTED}-")


def refusal(namespace: Namespace, image: str, account: str = LAUNCHER_ACCOUNT) -> str:
    """What the server says to a pod of that image; empty: it would admit the pod."""
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    shared = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [{"name": "launcher", "image": image, "securityContext": rights}]
    spec = {"serviceAccountName": account, "securityContext": shared, "containers": containers}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}
    return namespace.refusal(pod)


def test_the_server_finds_no_type_that_cannot_be(namespace: Namespace, policies: dict[str, str]) -> None:
    for name in set(policies.values()):
        checked = until(lambda name=name: type_check(namespace, name), f"the server has checked {name}")
        assert not checked.get("expressionWarnings"), name


def type_check(namespace: Namespace, policy: str) -> dict[str, Any] | None:
    """What the server writes of the expressions' types; None: nothing yet."""
    found = json.loads(namespace.kubectl("get", POLICIES.plural, policy, "--output=json"))
    status: dict[str, Any] = found.get("status", {})
    return {"checked": True, **status["typeChecking"]} if "typeChecking" in status else None
