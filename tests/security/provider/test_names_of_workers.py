"""Names of workers, of parameters or of a status: they are the run's own, and no options, lines or commands."""

from __future__ import annotations

import logging
import shlex
from dataclasses import replace

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import WorkerStatus
from elastic_training.clusters.document import SizeRequest, size_request
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.concurrency.bridge import run
from elastic_training.following.follow import Follower

LOG = logging.getLogger("test.names")


@pytest.mark.parametrize("name", ["../owner", "..", "/etc/passwd", "a/b", "a\0b", "a\nb", "", "x" * 300, "A"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettings, match="release"):
        size_request(None, [name], clip=False)


def test_only_workers_of_the_run_have_a_notice() -> None:
    cluster = FakeCluster()
    ref = run(cluster.claim(RunSpec("run", "1", ("python",), WorkersSpec(1, 2, 4)), "me")).ref
    with pytest.raises(InvalidSettings, match="has no worker"):
        run(cluster.ask(ref, SizeRequest("a wish", "-1", release=("somebody-elses-pod",))))
    assert run(cluster.size(ref)) == 2
    assert cluster.named("run").document.requests == ()


@pytest.mark.parametrize(
    "name", ["--kubeconfig=/tmp/theirs", "-n kube-system", "a; reboot", "a\nforged line", "$(reboot)"]
)
def test_a_name_in_a_status_is_no_option_and_no_command(name: str, caplog: pytest.LogCaptureFixture) -> None:
    claims = FakeCluster()
    run(claims.claim(RunSpec("run", "1", ("python",), WorkersSpec(1, 1, 1)), "me"))
    worker = replace(claims.named("run").status.workers[0], name=name, ranks=(0,))
    shell = KubernetesCluster("kubernetes_default", "ml").shell_in(worker)
    assert shell[3] == f"pod/{name}"
    assert shlex.split(shlex.join(shell)) == list(shell)

    class Pods(FakeCluster):
        def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
            return KubernetesCluster("kubernetes_default", "ml").shell_in(worker)

    cluster = Pods()
    ref = run(cluster.claim(RunSpec("run", "1", ("python",), WorkersSpec(1, 1, 1)), "me")).ref
    cluster.publish("run", workers=(worker,))
    cluster.script(lambda: cluster.succeed("run"))
    with caplog.at_level(logging.INFO):
        run(Follower(cluster, ref, "me", LOG).follow())
    (told,) = [record.getMessage() for record in caplog.records if "shell" in record.getMessage()]
    assert len(told.splitlines()) == 1
