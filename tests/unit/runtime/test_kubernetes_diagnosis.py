"""What Kubernetes says of workers that do not run; the objects are as real API servers serve them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.kubernetes.diagnosis import MAX_WORDS, Trouble, cause, needs_events, of_pod, troubles, warning_of
from elastic_runtime.kubernetes.objects import Event, Object, Pod
from elastic_runtime.launcher.kubernetes.workers import refusal

NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
NOT_FOUND = (
    'Failed to pull image "registry/trainer:2": rpc error: code = NotFound desc = failed to pull and unpack image '
    '"registry/trainer:2": registry/trainer:2: not found'
)
QUOTA = 'pods "run-worker-x" is forbidden: exceeded quota: small, requested: cpu=4, used: cpu=4, limited: cpu=4'
POLICY = "pods \"run-worker-x\" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'images' denied request"
PLAIN_HTTP = 'Head "https://localhost:5000/v2/a/manifests/1": http: server gave HTTP response to HTTPS client'
RESTRICTED = 'pods "run-worker-x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'


def pod(name: str = "run-worker-a", *, going: bool = False, **status: Any) -> Pod:
    metadata = {"name": name, "uid": f"uid-of-{name}"}
    if going:
        metadata["deletionTimestamp"] = "2026-01-02T12:00:00Z"
    return Pod({"metadata": metadata, "status": status})


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason: str, message: str = "", /, **last: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    container = {"name": "worker", "state": state, "lastState": {"terminated": last} if last else {}}
    return {"phase": "Pending", "containerStatuses": [container]}


def replica_set(reason: str, message: str, status: str = "True") -> Object:
    condition = {"type": "ReplicaFailure", "status": status, "reason": reason, "message": message}
    return Object({"metadata": {"name": "run-worker"}, "status": {"conditions": [condition]}})


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}],
    "containerStatuses": [{"name": "worker", "state": {"running": {}}}],
}


class TestOfAPod:
    @pytest.mark.parametrize(
        ("status", "warning", "words"),
        [
            ({}, "", ""),
            ({"phase": "Pending"}, "", ""),
            (RUNNING, "FailedMount: long over", ""),
            (unscheduled(NO_GPU), "", f"Unschedulable: {NO_GPU}"),
            (waiting("ContainerCreating"), "", ""),
            (waiting("ContainerCreating"), 'FailedMount: secret "a" not found', 'FailedMount: secret "a" not found'),
            (waiting("PodInitializing"), "FailedMount: x", "FailedMount: x"),
            (waiting("ErrImagePull", "not found"), "", "ErrImagePull: not found"),
            (waiting("ImagePullBackOff", 'Back-off "a"'), "", 'ImagePullBackOff: Back-off "a"'),
            (waiting("ImagePullBackOff", 'Back-off "a"'), f"Failed: {NOT_FOUND}", f"Failed: {NOT_FOUND}"),
            (waiting("ImagePullBackOff", 'Back-off "a"'), "FailedMount: x", 'ImagePullBackOff: Back-off "a"'),
            (
                waiting("CrashLoopBackOff", "back-off 10s", reason="OOMKilled", exitCode=137),
                "",
                "OOMKilled: container worker ended with code 137",
            ),
            (
                waiting("CrashLoopBackOff", "back-off 10s", reason="Error", exitCode=1, message="no module"),
                "",
                "Error: container worker ended with code 1; the end of its log: no module",
            ),
            (waiting("CrashLoopBackOff", "back-off 10s"), "", "CrashLoopBackOff: back-off 10s"),
            (
                {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
                "",
                "Evicted: The node was low on resource: memory.",
            ),
            (
                {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"name": "worker", "state": {"terminated": {"reason": "Error", "exitCode": 3}}}
                    ],
                },
                "",
                "Error: container worker ended with code 3",
            ),
            ({"phase": "Failed"}, "", "Failed"),
        ],
    )
    def test_says_why_it_does_not_run(self, status: dict[str, Any], warning: str, words: str) -> None:
        assert of_pod(pod(**status), warning) == words
        assert of_pod(pod(going=True, **status), warning) == ""

    @pytest.mark.parametrize(
        ("status", "needed"),
        [
            (waiting("ContainerCreating"), True),
            (waiting("PodInitializing"), True),
            (waiting("ImagePullBackOff"), True),
            (waiting("ErrImagePull"), False),
            (unscheduled(NO_GPU), False),
            (RUNNING, False),
        ],
    )
    def test_needs_events_where_it_is_silent(self, status: dict[str, Any], needed: bool) -> None:
        assert needs_events(pod(**status)) is needed
        assert not needs_events(pod(going=True, **status))

    def test_is_over_when_its_containers_are(self) -> None:
        ended = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"terminated": {}}}]}
        assert pod(going=True, **ended).stopped
        assert not pod(**ended).stopped  # It is started again.
        assert not pod(going=True, **RUNNING).stopped
        assert pod(going=True, **waiting("ContainerCreating")).stopped
        assert pod(going=True, phase="Pending").stopped
        assert not pod(phase="Pending").stopped
        assert pod(phase="Failed").stopped


class TestWarnings:
    def event(self, second: int, reason: str, message: str, kind: str = "Warning") -> Event:
        last = f"2026-01-02T12:00:{second:02}Z"
        return Event({"type": kind, "reason": reason, "message": message, "lastTimestamp": last})

    def test_the_newest_counts(self) -> None:
        events = [self.event(2, "FailedMount", "b"), self.event(1, "FailedMount", "a")]
        assert warning_of(events) == "FailedMount: b"

    def test_the_cause_counts_more(self) -> None:
        events = [self.event(1, "Failed", NOT_FOUND), self.event(2, "Failed", "Error: ImagePullBackOff")]
        assert warning_of(events) == f"Failed: {NOT_FOUND}"

    def test_what_keeps_nothing_from_running_does_not(self) -> None:
        assert warning_of([self.event(1, "MissingClusterDNS", "x"), self.event(1, "Pulling", "y", "Normal")]) == ""
        assert warning_of([]) == ""


class TestTroubles:
    def test_are_told_once_for_all_pods_that_have_them(self) -> None:
        pods = [pod(name, **unscheduled(f"{NO_GPU}.")) for name in ("c", "a", "b")]
        [trouble] = troubles(None, [*pods, pod("d", **RUNNING)], {})
        assert trouble == Trouble(cause(f"Unschedulable: {NO_GPU}."), ("a", "b", "c"))
        assert trouble.sentence == (
            f"Kubernetes says of worker pod a and 2 more: Unschedulable: {NO_GPU}. "
            "Ask for less per pod, or add nodes that have it"
        )

    def test_of_making_pods_at_all(self) -> None:
        [trouble] = troubles(replica_set("FailedCreate", QUOTA), [], {})
        assert trouble.sentence.startswith(
            f"Kubernetes says of making worker pods: FailedCreate: {QUOTA}. Ask for less"
        )
        assert troubles(replica_set("FailedCreate", QUOTA, "False"), [], {}) == ()
        assert troubles(Object({"metadata": {"name": "run-worker"}}), [], {}) == ()

    def test_use_the_events_of_their_pod(self) -> None:
        stuck = pod(**waiting("ContainerCreating"))
        [trouble] = troubles(None, [stuck], {"uid-of-run-worker-a": 'FailedMount: configmap "x" not found'})
        assert trouble.cause.hopeless
        assert troubles(None, [stuck], {"uid-of-another": "FailedMount: x"}) == ()

    @pytest.mark.parametrize(
        ("words", "hopeless", "remedy"),
        [
            (f"Unschedulable: {NO_GPU}", False, "Ask for less per pod"),
            ("Unschedulable: 0/3 nodes are available: 3 node(s) didn't match node selector.", False, "node selector"),
            ("Unschedulable: 0/3 nodes are available: 3 node(s) had taint {spot: true}", False, "toleration"),
            ("Unschedulable: 0/3 nodes are available: 3 Too many pods.", False, "as soon as a node has room"),
            ('Unschedulable: persistentvolumeclaim "data" not found', True, "Create it in this namespace"),
            (f"Failed: {NOT_FOUND}", True, "Correct the image's name or tag"),
            ('ErrImagePull: pull access denied for "trainer", may require authorization', True, "image pull secret"),
            ("ErrImagePull: dial tcp 10.0.0.1:443: i/o timeout", False, "reach its registry"),
            ('ImagePullBackOff: Back-off pulling image "a:1"', False, "reach its registry"),
            ('InvalidImageName: couldn\'t parse image reference "A"', True, "Correct the image's name"),
            ('CreateContainerConfigError: secret "keys" not found', True, "Create it in this namespace"),
            (
                "CreateContainerConfigError: container has runAsNonRoot and image will run as root",
                True,
                "whose user is not root",
            ),
            ('StartError: exec: "python": executable file not found in $PATH', True, "elastic-runtime installed"),
            ('FailedMount: MountVolume.SetUp failed for volume "v" : secret "s" not found', True, "Create it"),
            ('FailedMount: Unable to attach or mount volumes: timed out waiting for the condition"', False, "volumes"),
            (f"FailedCreate: {QUOTA}", False, "quota raised"),
            (f"FailedCreate: {QUOTA.replace('limited: cpu=4', 'limited: cpu=2')}", True, "quota raised"),
            ("CreateContainerError: failed to generate spec", True, "Correct what the container refers to"),
            ("CreateContainerError: context deadline exceeded", False, "Correct what the container refers to"),
            (
                'Failed: Failed to pull image "a": too many requests: not found',
                False,
                "Correct the image's name or tag",
            ),
            ("FailedMount: references non-existent config key: a", True, "Create what the pod mounts"),
            (f"FailedCreate: {RESTRICTED}", True, "this policy admits it"),
            ("FailedCreate: pods is forbidden: PodSecurityPolicy: unable to admit pod: []", True, "this policy"),
            ('FailedCreate: admission webhook "v.example.com" denied the request: no', True, "this webhook"),
            (f"FailedCreate: {POLICY}: no", True, "this policy admits it"),
            # The words behind it are its author's.
            (f"FailedCreate: {POLICY}: quota of this team: secret a not found", True, "this policy admits it"),
            ('FailedCreate: admission webhook "v" denied the request: secret "a" not found', True, "this webhook"),
            (f'ErrImagePull: Failed to pull "a": {PLAIN_HTTP}', True, "speaks plain HTTP"),
            ("ErrImagePull: tls: failed to verify certificate: x509: unknown authority", True, "trust the registry"),
            ('FailedCreate: pods "x" is forbidden: error looking up service account: not now', True, "administrators"),
            ('FailedCreate: serviceaccount "trainer" not found', True, "Create it in this namespace"),
            ('FailedCreate: Pod "x" is invalid: spec.containers[0].image: Required value', True, "pod template"),
            ("OOMKilled: container worker ended with code 137", False, "more memory"),
            ("Error: container worker ended with code 1", False, "kubectl logs --previous"),
            ("Evicted: The node was low on resource: memory.", False, "overcommitted"),
        ],
    )
    def test_have_a_remedy_and_maybe_hope(self, words: str, hopeless: bool, remedy: str) -> None:
        trouble = Trouble(cause(words), ("a",))
        assert trouble.cause.hopeless is hopeless
        assert remedy in trouble.sentence

    def test_of_a_new_kind_are_told_all_the_same(self) -> None:
        trouble = Trouble(cause("SomethingNew: " + "x" * 1000))
        assert not trouble.cause.hopeless
        assert trouble.sentence.endswith("x…")
        assert len(trouble.sentence) == len("Kubernetes says of making worker pods: ") + MAX_WORDS

    def test_refuse_together(self) -> None:
        found = tuple(Trouble(cause(f"New{number}: x")) for number in range(5))
        told = refusal(found)
        assert told is not None
        assert told.words.count("Kubernetes says") == 3
        assert not told.hopeless
        assert refusal(()) is None
        hopeless = refusal((*found, Trouble(cause("InvalidImageName: x"))))
        assert hopeless is not None
        assert hopeless.hopeless
