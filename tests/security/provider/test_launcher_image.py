"""The launcher's pod has rights; the image that runs there need not be the one in which a team's scripts are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.kubernetes.settings import read_settings
from elastic_runtime.run import runobjects
from elastic_training.settings import Pods
from tests.unit.provider.manifests_bench import container_of, objects_of, pods_of

ROOT = Path(__file__).parents[3]
OURS, THEIRS = "registry/launcher@sha256:" + "0" * 64, "registry/team:1"


def test_the_launcher_has_an_image_of_its_own_and_its_entrypoint() -> None:
    pods = Pods(image=THEIRS, launcher_image=OURS, command=["/team/init", "--"])
    launcher, worker = map(container_of, pods_of(objects_of(pods)))
    assert launcher["image"] == OURS
    assert "command" not in launcher, "that one is of the team's image"
    assert (worker["image"], worker["command"]) == (THEIRS, ["/team/init", "--"])


@pytest.mark.parametrize(("launcher_image", "own"), [(OURS, True), (THEIRS, False), (None, False)])
def test_a_launcher_knows_whether_its_image_is_the_workers(launcher_image: str | None, own: bool) -> None:
    container = container_of(pods_of(objects_of(Pods(image=THEIRS, launcher_image=launcher_image)))[0])
    environment = {each["name"]: each.get("value", "by the downward API") for each in container["env"]}
    assert read_settings([], environment).own_image is own
    assert container["image"] == (launcher_image or THEIRS)


def test_a_name_of_no_image_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"pods\.launcher_image"):
        Pods(launcher_image="no image")


def test_no_pod_of_workers_has_rights() -> None:
    launcher, worker = (each["spec"] for each in pods_of(objects_of(Pods(image=THEIRS))))
    assert (launcher["automountServiceAccountToken"], worker["automountServiceAccountToken"]) == (True, False)
    assert "serviceAccountName" not in worker
    assert runobjects.OWN_IMAGE_VARIABLE not in {each["name"] for each in container_of({"spec": launcher})["env"]}


def test_actions_of_workflows_are_named_by_digest() -> None:
    """A tag can be moved by whoever writes to that repository, and the release's job may publish."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
    used = [each for path in workflows for each in re.findall(r"uses:\s*(\S+)", path.read_text())]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []
