from __future__ import annotations

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.cluster import KubernetesCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.registry import check_cluster, get_cluster, split_name, substituted


def test_local_is_this_machine_and_all_else_a_connection() -> None:
    assert isinstance(get_cluster("local"), LocalCluster)
    assert isinstance(get_cluster("kubernetes_default"), KubernetesCluster)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("prod", ("prod", None)), ("aws.prod-1/team-a", ("aws.prod-1", "team-a")), ("k8s(eu)#2", ("k8s(eu)#2", None))],
)
def test_a_name_is_a_connection_and_perhaps_a_namespace(name: str, parts: tuple[str, str | None]) -> None:
    check_cluster(name)
    assert split_name(name) == parts


@pytest.mark.parametrize("name", ["", "/", "prod/", "/team", "prod/Team", "a/b/c", "two words", None, 3])
def test_what_no_cluster_can_be_called_is_refused_with_a_remedy(name: object) -> None:
    with pytest.raises(InvalidSettings) as caught:
        check_cluster(name)
    assert caught.value.field == "cluster"
    assert caught.value.remedy.startswith("Write ")


def test_a_template_is_not_known_yet() -> None:
    check_cluster("{{ params.cluster }}")


@pytest.mark.parametrize("name", ["local", "prod", "prod/team"])
def test_any_cluster_can_be_substituted_for_a_while(name: str) -> None:
    with substituted(name, outer := FakeCluster()):
        with substituted(name, inner := FakeCluster()):
            assert get_cluster(name) is inner
        assert get_cluster(name) is outer
    assert not isinstance(get_cluster(name), FakeCluster)
