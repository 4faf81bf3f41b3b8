"""A run whose task has not waited is kept by the page, once it sees that it is over."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind
from elastic_training import archive
from elastic_training.archive import keeping
from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import late
from tests.unit.provider.operator_bench import NAME, operator, trying
from tests.unit.provider.page_bench import API, IDS, Browser, Rendered, rendering, seeing


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Rendered:
    return rendering(monkeypatch, tmp_path, store)


@pytest.fixture(autouse=True)
def training(fake: FakeCluster, store: str) -> None:
    operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each end that is written, its run."""
    found: list[str] = []
    keep = keeping.keep

    def counted(*arguments: object) -> str | None:
        found.append(NAME)
        return keep(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(keeping, "keep", counted)
    return found


def kept() -> archive.Kept | None:
    return archive.read(IDS["dag_id"], IDS["run_id"], IDS["task_id"])


def look_at_task(client: Browser) -> None:
    assert client.get(f"{API}/task", params=IDS).status_code == 200


def look_at_list(client: Browser) -> None:
    assert client.get(f"{API}/runs").json()["total"] == 1


@pytest.mark.parametrize("look", [look_at_task, look_at_list])
def test_once_it_is_over(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, written: list[str], look: Callable[[Browser], None]
) -> None:
    look(seeing(monkeypatch))
    assert kept() is None
    fake.succeed(NAME)
    client = seeing(monkeypatch)
    for _ in range(3):
        look(client)
    found = kept()
    assert found is not None
    assert (found.status.phase, found.try_number) == ("succeeded", 1)
    assert written == [NAME]
    look(seeing(monkeypatch))  # Another API server.
    assert written == [NAME]


def test_by_several_api_servers_at_the_same_time(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.fail(NAME, FailureKind.RANK_FAILED, "no such sample", 1)
    servers = [seeing(monkeypatch) for _ in range(4)]
    with ThreadPoolExecutor(4) as people:
        list(people.map(look_at_task, servers))
    found = kept()
    assert found is not None
    assert (found.tries, found.status.reason) == ((1,), "no such sample")


def test_not_what_is_out_of_sight_for_a_moment(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, written: list[str]
) -> None:
    fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
    look_at_list(seeing(monkeypatch))
    assert written == []
    monkeypatch.setattr(late, "utc_now", lambda: utc_now() + late.SURE + timedelta(seconds=1))
    look_at_list(seeing(monkeypatch))
    assert written == [NAME]


def test_a_store_that_refuses_is_asked_again_later(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    fake.succeed(NAME)
    folder = Path(store.removeprefix("file://"))
    folder.rmdir() if folder.is_dir() else None
    folder.write_text("in the way")
    now = [100.0]
    monkeypatch.setattr(late, "monotonic", lambda: now[0])
    client = seeing(monkeypatch)
    look_at_task(client)
    assert kept() is None
    folder.unlink()
    look_at_task(client)
    assert kept() is None
    now[0] += late.AGAIN
    look_at_task(client)
    assert kept() is not None
