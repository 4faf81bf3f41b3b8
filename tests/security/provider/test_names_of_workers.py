"""A worker's name from a DAG run's parameters becomes the name of a file, or of a pod: of the run's own alone."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import RunSpec, WorkersSpec
from elastic_training.bridge import run
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.wish import SizeWish, size_wish


@pytest.mark.parametrize("name", ["../owner", "..", "/etc/passwd", "a/b", "a\0b", "a\nb", "", "x" * 300, "A"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettings, match="release"):
        size_wish(None, [name], clip=False)


def test_only_workers_of_the_run_have_a_notice() -> None:
    cluster = FakeCluster()
    ref = run(cluster.claim(RunSpec("run", "1", ("python",), WorkersSpec(1, 2, 4)), "me")).ref
    with pytest.raises(InvalidSettings, match="has no worker"):
        run(cluster.ask(ref, SizeWish("-1", release=("somebody-elses-pod",)), "a wish"))
    assert run(cluster.size(ref)) == 2
    assert cluster.named("run").document.requests == ()
