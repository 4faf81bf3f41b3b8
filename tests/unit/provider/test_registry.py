from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_training.clusters import registry
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.registry import check_cluster, get_cluster, has_pods, split_name, substituted
from elastic_training.concurrency.bridge import run

DISTRIBUTION = Path(__file__).resolve().parents[2] / "contract" / "distribution"


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


class TestPlacesOfOtherPackages:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The one of docs/extending.md."""
        monkeypatch.syspath_prepend(str(DISTRIBUTION))
        places = registry._places
        places.cache_clear()
        yield
        places.cache_clear()

    @pytest.mark.parametrize("name", ["sqlite", "sqlite/a place", "sqlite/A/b"])
    def test_its_name_and_all_behind_it_are_the_places_own(self, name: str) -> None:
        check_cluster(name)
        assert not has_pods(name)

    def test_it_makes_the_cluster_of_what_is_behind_its_name(self, tmp_path: Path) -> None:
        assert run(get_cluster(f"sqlite/{tmp_path}").list()) == []
        with pytest.raises(RunNotFound):
            run(get_cluster(f"sqlite/{tmp_path}").find("run"))

    def test_it_is_not_imported_when_a_dag_is_parsed(self) -> None:
        sys.modules.pop("sqlite_place", None)
        check_cluster("sqlite/A B")
        assert "sqlite_place" not in sys.modules
        get_cluster("sqlite")
        assert "sqlite_place" in sys.modules

    def test_it_can_be_substituted(self) -> None:
        with substituted("sqlite", fake := FakeCluster()):
            assert get_cluster("sqlite") is fake

    def test_the_remedy_names_it(self) -> None:
        with pytest.raises(
            InvalidSettings,
            match="'slurm:/FOLDER', 'ray:HOST:PORT/FOLDER', 'spark://HOST:PORT/FOLDER', 'sqlite', the id",
        ):
            check_cluster("two words")

    @pytest.mark.parametrize("target", ["no_such_module:open_cluster", "sqlite_place:nothing", "builtins:repr"])
    def test_one_that_is_broken_is_named(self, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = EntryPoint("broken", target, registry.PLACES)
        monkeypatch.setattr(registry, "_places", lambda: {"broken": broken})
        with pytest.raises(InvalidSettings, match=r"'broken' \(.*Repair or remove"):
            get_cluster("broken")


def test_only_connections_have_pods() -> None:
    assert has_pods("prod/team")
    assert not has_pods("local")
