"""The demo in somebody's cluster: its folder is copied through a pod, and what is missing is said in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from demo_kit import cluster_folder, kubernetes_trainings  # noqa: E402  # the path above has to be there first
from demo_kit.airflow_stack import StackFailed  # noqa: E402
from demo_kit.cluster_folder import ClusterFolder  # noqa: E402

KUBECTL = """#!/bin/bash
# Of a cluster that is a folder: a pod's path HERE is THERE.
echo "$*" >> {log}
for each; do case $each in exec) break ;; apply) cat > /dev/null; exit ;; get) break ;; esac; done
case "$*" in *"get storageclasses"*) exec cat {classes} ;; *"get pod"*) exec cat {pod} ;; esac
while [ "$1" != -- ]; do shift; done
shift
exec "${{@//{here}/{there}}}"
"""
CLASSES = {"items": [{"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}]}
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def pod(**state: Any) -> dict[str, Any]:
    return {"status": {"phase": "Pending", "containerStatuses": [{"state": state, "restartCount": 0}]}}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def place(tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ClusterFolder]:
    """Makes the folder in a cluster with these StorageClasses, in which its pod comes to that."""

    def make(state: Any = READY, classes: Any = CLASSES) -> ClusterFolder:
        here, tools = tmp_path / "here", tmp_path / "tools"
        for each in (here, tools):
            each.mkdir()
        (tmp_path / "pod").write_text(json.dumps(state))
        (tmp_path / "classes").write_text(json.dumps(classes))
        files = {"log": tmp_path / "log", "pod": tmp_path / "pod", "classes": tmp_path / "classes"}
        program = KUBECTL.format(**files, here=str(here).replace("/", "\\/"), there=there)
        (tools / "kubectl").write_text(program)
        (tools / "kubectl").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        return ClusterFolder(Path("/nowhere"), "demo", "digits", here, "registry/trainer:1")

    return make


def test_a_task_finds_what_ranks_have_written_and_leaves_what_they_read(
    place: Callable[..., ClusterFolder], there: Path, tmp_path: Path
) -> None:
    folder = place()
    (there / "checkpoints").mkdir()
    (there / "checkpoints" / "newest").write_text("of the ranks")
    (folder.folder / "checkpoints").mkdir()
    (folder.folder / "checkpoints" / "newest").write_text("older")
    script = tmp_path / "task.py"
    script.write_text(
        f"import pathlib; here = pathlib.Path({str(folder.folder)!r})\n"
        "assert (here / 'checkpoints' / 'newest').read_text() == 'of the ranks'\n"
        "(here / 'run' / 'ledger').mkdir(parents=True)\n"
        "(here / 'run' / 'ledger' / 'rank').write_text('mine')\n"
        "(here / 'run' / 'shard').write_text('digits')\n"
        "(here / 'checkpoints' / 'newest').write_text('mine')\n"
    )
    interpreter = folder.interpreter(Path(sys.executable), tmp_path / "python")
    subprocess.run([interpreter, script], check=True)
    assert (there / "run" / "shard").read_text() == "digits"
    assert not (there / "run" / "ledger").exists(), "those are the ranks'"
    assert (there / "checkpoints" / "newest").read_text() == "of the ranks"


def test_the_first_task_finds_nothing_and_one_that_fails_leaves_nothing(
    place: Callable[..., ClusterFolder], there: Path, tmp_path: Path
) -> None:
    folder = place()
    script = tmp_path / "task.py"
    script.write_text(f"import pathlib, sys; pathlib.Path({str(folder.folder)!r}, 'half').touch(); sys.exit(7)")
    interpreter = folder.interpreter(Path(sys.executable), tmp_path / "python")
    assert subprocess.run([interpreter, script], check=False).returncode == 7
    assert list(there.iterdir()) == []
    version = subprocess.run([interpreter, "--version"], check=True, capture_output=True, text=True).stdout
    assert version.startswith("Python 3"), "Airflow asks for it"


def test_a_pod_that_runs_is_the_way_to_the_folder(place: Callable[..., ClusterFolder], tmp_path: Path) -> None:
    place().begin()
    asked = (tmp_path / "log").read_text().splitlines()
    assert [each.split(" ", 2)[2].split(" --output")[0] for each in asked] == [
        "get storageclasses",
        "apply --filename=-",
        "apply --filename=-",
        "get pod folder",
    ]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (pod(waiting={"reason": "ImagePullBackOff", "message": "not found"}), r"not found\. Push .* IMAGE="),
        (pod(waiting={"reason": "InvalidImageName"}), r"InvalidImageName\. Push the image"),
        (pod(terminated={"exitCode": 1}), "ends at once: IMAGE has to be the trainer's image"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_at_once(place: Callable[..., ClusterFolder], state: Any, said: str) -> None:
    with pytest.raises(StackFailed, match=f"^no pod of registry/trainer:1 runs in demo: .*{said}"):
        place(state).begin()


def test_what_kubernetes_says_is_told_when_waiting_is_over(
    place: Callable[..., ClusterFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_folder, "_POD_TIMEOUT", 0.0)
    unbound = {"type": "PodScheduled", "status": "False", "message": "pod has unbound immediate PersistentVolumeClaims"}
    with pytest.raises(StackFailed, match="runs in demo: pod has unbound immediate PersistentVolumeClaims"):
        place({"status": {"phase": "Pending", "conditions": [unbound]}}).begin()


def test_a_cluster_without_a_default_storage_class_is_asked_for_one(place: Callable[..., ClusterFolder]) -> None:
    folder = place(classes={"items": [{"metadata": {"name": "slow"}}]})
    with pytest.raises(StackFailed, match=r"no default StorageClass.*STORAGE_CLASS=standard"):
        folder.begin()
    folder.begin("slow")


def test_workers_go_where_the_folder_is(place: Callable[..., ClusterFolder], tmp_path: Path) -> None:
    template = json.loads(place().worker_template(tmp_path / "worker.json").read_text())
    [near] = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["labelSelector"]["matchLabels"].items() <= place_labels().items()


def place_labels() -> dict[str, str]:
    return dict(ClusterFolder(Path("/nowhere"), "demo", "digits", Path("/here"), "i:1")._pod()["metadata"]["labels"])


def test_a_refusal_is_no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(StackFailed, match=r"^tools/cluster load .* ended with \d"):
        kubernetes_trainings._call("tools/cluster", "load", "nothing.tar", "more")


def test_an_image_has_to_be_named_for_a_cluster_of_ones_own(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path), "ELASTIC_TRAINING_CLUSTER_KIND": "kubeconfig"}
    command = [sys.executable, "tools/demo.py", "--cluster=kubernetes", f"--trainer-python={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: no image can be loaded into the cluster of KUBECONFIG from here: push the one" in done.stdout
    assert "IMAGE=registry.example/trainer:1" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
