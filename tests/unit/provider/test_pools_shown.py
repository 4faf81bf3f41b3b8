"""Pools in the list of all runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.pool.settings import PoolNotebook, PoolSettings
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.concurrency.bridge import run
from elastic_training.console import pools
from elastic_training.console.pools import FoundPool, plain_pools, pools_in

WHY = "has 1 of 4 workers of pool team-a: priority 1 beside digits (10)"
DIGITS = PoolRun("digits", "1", 10, False, 2, 3, 3, 3, ("worker-0",), "")
NIGHTLY = PoolRun("nightly", "2", 1, False, 1, 4, 4, 1, ("worker-1",), WHY)
POOL = PoolStatus(PoolSettings("team-a", 0, 4), 4, 0, (DIGITS, NIGHTLY))


def nobody(_: str) -> bool:
    return False


def test_who_has_what_and_why() -> None:
    [shown] = plain_pools([FoundPool("team-a", POOL)], {"digits": {"dag_id": "numbers"}, "nightly": {}}, nobody)
    assert (shown["name"], shown["least"], shown["most"], shown["free"], shown["others"]) == ("team-a", 1, 4, 0, 0)
    assert (shown["runs"][0]["dag_id"], shown["may_edit"]) == ("numbers", False)
    assert [(each["run"], each["has"], each["wanted"], each["reason"]) for each in shown["runs"]] == [
        ("digits", 3, 3, ""),
        ("nightly", 1, 4, WHY),
    ]


def test_runs_of_others_are_counted_and_named_by_no_reason() -> None:
    [shown] = plain_pools([FoundPool("team-a", POOL)], {"nightly": {}}, nobody)
    assert shown["others"] == 3
    assert [each["run"] for each in shown["runs"]] == ["nightly"]
    assert "digits" not in str(shown)


def test_a_notebook_is_named_without_its_token() -> None:
    with_notebook = PoolStatus(PoolSettings("team-a", notebook=PoolNotebook(8899)), 0, 0)
    shown = plain_pools([FoundPool("team-a", each) for each in (POOL, with_notebook)], {}, nobody)
    assert [each["notebook"] for each in shown] == ["", "http://127.0.0.1:8899/lab"]


def test_other_places_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_read", lambda: (POOL,))
    assert run(pools_in(["local", "slurm:/runs"], 5.0)) == (FoundPool("team-a", POOL),)
    assert run(pools_in(["slurm:/runs"], 5.0)) == ()


def test_a_folder_that_cannot_be_read_costs_the_pools_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreadable() -> tuple[PoolStatus, ...]:
        raise ClusterUnavailable(f"{tmp_path} cannot be read")

    monkeypatch.setattr(pools, "_read", unreadable)
    assert run(pools_in(["local"], 5.0)) == ()


def test_pools_in_pods_are_named_with_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(_: NamespacePools) -> list[tuple[PoolStatus, bool]]:
        return [(POOL, True)]

    monkeypatch.setattr(pools, "_read", lambda: (POOL,))
    monkeypatch.setattr(NamespacePools, "list", listed)
    monkeypatch.setattr(pools, "own_name", lambda name: name)
    found = run(pools_in(["local", "k8s/training", "pool:team-a@k8s/training"], 5.0))
    assert [each.name for each in found] == ["team-a", "team-a@k8s/training"]
    shown = plain_pools(found, {}, lambda name: name == "team-a")
    assert [(each["name"], each["may_edit"]) for each in shown] == [("team-a", True), ("team-a@k8s/training", True)]
