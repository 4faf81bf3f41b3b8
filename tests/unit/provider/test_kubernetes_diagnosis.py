"""What Kubernetes says about a launcher that does not run, and whether waiting helps."""

from __future__ import annotations

import pytest

from elastic_runtime.kubernetes.objects import Event, Object, Pod
from elastic_runtime.kubernetes.quantities import amount, exceeds
from elastic_training.clusters.kubernetes.status import diagnosis
from tests.unit.provider.kubernetes_objects import Plain, after, ended, event, job, pod, waiting

SOON, LATE = 5.0, 60.0
"""Seconds after the pod got its node."""
NOT_FOUND = "rpc error: code = NotFound desc = failed to pull and unpack image: not found"


def about(pods: list[Pod], *events: Event, seconds: float = SOON, of: Object | None = None) -> diagnosis.Why:
    said = diagnosis.about(pods, events, of or job(), after(seconds))
    assert said is not None
    return said


class TestAContainerThatWaits:
    @pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull"])
    def test_a_name_that_is_none_will_not_become_one(self, reason: str) -> None:
        said = about([pod(state=waiting(reason, "couldn't parse image reference"))])
        assert said.fatal
        assert "image" in said.text.lower()

    @pytest.mark.parametrize(
        ("reason", "message"),
        [
            ("ErrImagePull", NOT_FOUND),
            ("CreateContainerConfigError", 'secret "credentials" not found'),
            ("CreateContainerError", "failed to generate spec"),
        ],
    )
    def test_what_may_be_a_slip_is_fatal_when_it_lasts(self, reason: str, message: str) -> None:
        made = [pod(state=waiting(reason, message))]
        assert not about(made, seconds=SOON).fatal
        said = about(made, seconds=LATE)
        assert said.fatal
        assert f"{message}. " in str(said)

    def test_a_back_off_without_a_cause_is_waited_for(self) -> None:
        assert not about([pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "x"'))], seconds=LATE).fatal

    @pytest.mark.parametrize("stumble", ["429 Too Many Requests", "i/o timeout", "connection refused", "503 Service"])
    def test_a_registry_that_stumbles_is_waited_for(self, stumble: str) -> None:
        assert not about([pod(state=waiting("ErrImagePull", f"failed: {stumble}"))], seconds=LATE).fatal

    def test_a_back_off_tells_the_cause_from_the_events(self) -> None:
        made = pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "x"'))
        failed = event(made.uid, "Failed", f'Failed to pull image "x": {NOT_FOUND}')
        assert NOT_FOUND in about([made], failed).text

    def test_a_mount_without_its_secret_is_fatal_when_it_lasts(self) -> None:
        made = pod(state=waiting("ContainerCreating"))
        failed = event(made.uid, "FailedMount", 'MountVolume.SetUp failed: secret "x" not found')
        assert not about([made], failed, seconds=SOON).fatal
        said = about([made], failed, seconds=LATE)
        assert said.fatal
        assert 'secret "x" not found' in said.text

    def test_a_volume_that_comes_late_is_waited_for(self) -> None:
        made = pod(state=waiting("ContainerCreating"))
        failed = event(made.uid, "FailedAttachVolume", "Multi-Attach error for volume")
        assert not about([made], failed, seconds=LATE).fatal

    def test_a_container_that_is_being_created_is_not_talked_about(self) -> None:
        assert diagnosis.about([pod(state=waiting("ContainerCreating"))], (), job(), after(LATE)) is None


class TestAPodWithoutANode:
    def test_no_room_is_waited_for_as_somebody_may_make_some(self) -> None:
        full = {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu"}
        said = about([pod(scheduled=full)], seconds=3600)
        assert not said.fatal
        assert "3 Insufficient cpu" in said.text

    def test_a_gate_is_waited_for(self) -> None:
        gated = {"status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked due to gates"}
        assert "gate" in about([pod(scheduled=gated)]).text


class TestALauncherThatHasEnded:
    def test_one_that_cannot_run_says_why_itself(self) -> None:
        said = about([pod(phase="Failed", state=ended(2, message="the spec cannot be read"))])
        assert said.fatal
        assert "the spec cannot be read" in said.text

    def test_one_that_was_taken_is_no_failure(self) -> None:
        pods = [pod(f"p{n}", created=after(n), phase="Failed", state=ended(3)) for n in range(5)]
        assert not about(pods).fatal

    @pytest.mark.parametrize(
        "state", [ended(128, "StartError", "exec: no such file"), ended(127), ended(1, "ContainerCannotRun")]
    )
    def test_one_whose_command_is_not_in_the_image_never_will(self, state: Plain) -> None:
        said = about([pod(phase="Failed", state=state)])
        assert said.fatal
        assert "entrypoint" in said.text

    def test_out_of_memory_is_named_and_fatal_when_it_goes_on(self) -> None:
        pods = [pod(f"p{n}", created=after(n), phase="Failed", state=ended(137, "OOMKilled")) for n in range(3)]
        once = about(pods[:1])
        assert not once.fatal
        assert "OOMKilled" in once.text
        assert "memory" in once.text
        assert about(pods).fatal

    def test_a_crash_tells_its_last_words(self) -> None:
        assert "No module named" in about([pod(phase="Failed", state=ended(1, message="No module named x"))]).text

    def test_an_evicted_one_is_replaced(self) -> None:
        said = about([pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory")])
        assert not said.fatal
        assert "low on resource" in said.text

    def test_the_newest_counts(self) -> None:
        old = pod("old", phase="Failed", state=ended(137, "OOMKilled"))
        new = pod("new", created=after(10), state=waiting("InvalidImageName", "bad"))
        assert "InvalidImageName" in about([new, old]).text


class TestAPodThatIsNotMade:
    def refused(self, message: str, count: int = 1) -> Event:
        return event("job-uid", "FailedCreate", f'Error creating: pods "run-launcher-" is forbidden: {message}', count)

    def test_a_full_quota_is_waited_for(self) -> None:
        quota = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
        assert not about([], self.refused(quota, 20), seconds=LATE).fatal

    def test_a_quota_that_is_smaller_than_the_pod_is_not(self) -> None:
        quota = "exceeded quota: q, requested: limits.memory=4Gi, used: limits.memory=0, limited: limits.memory=2Gi"
        said = about([], self.refused(quota))
        assert said.fatal
        assert "quota" in said.text

    def test_admission_is_fatal_at_the_second_refusal(self) -> None:
        rule = 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
        assert not about([], self.refused(rule)).fatal
        said = about([], self.refused(rule, count=2))
        assert said.fatal
        assert "PodSecurity" in said.text

    def test_a_missing_service_account_names_the_manifest(self) -> None:
        assert "rbac.yaml" in about([], self.refused('serviceaccount "x" not found', 2)).text

    def test_a_queue_holds_it_back(self) -> None:
        assert "suspended" in about([], of=job(suspend=True)).text

    def test_silence_is_no_word(self) -> None:
        assert diagnosis.about([], (), job(), after(LATE)) is None


class TestQuantities:
    @pytest.mark.parametrize(
        ("written", "value"),
        [("2", 2), ("500m", 0.5), ("2Gi", 2 * 2**30), ("1k", 1000), ("1Ki", 1024), ("1e3", 1000), ("0.5", 0.5)],
    )
    def test_are_numbers(self, written: str, value: float) -> None:
        assert float(amount(written)) == value

    @pytest.mark.parametrize("written", ["", "2GB", "x", "1.2.3"])
    def test_or_they_are_none(self, written: str) -> None:
        with pytest.raises(ValueError, match="not a quantity"):
            amount(written)

    @pytest.mark.parametrize(
        ("requested", "limited", "never"),
        [
            ("cpu=4", "cpu=2", True),
            ("cpu=2", "cpu=2", False),
            ("cpu=1500m", "cpu=1", True),
            ("pods=1", "pods=1", False),
        ],
    )
    def test_of_a_quota_tell_whether_waiting_helps(self, requested: str, limited: str, never: bool) -> None:
        assert exceeds(f"exceeded quota: q, requested: {requested}, used: cpu=1, limited: {limited}") is never
