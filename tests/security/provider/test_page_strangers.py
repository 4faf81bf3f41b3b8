"""Who asks the page's routes without the right, from elsewhere, or for what is none of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.pool.folder import pool_folder
from elastic_runtime.pool.settings import PoolSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import access
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying
from tests.unit.provider.page_bench import API, CHANGING, IDS, PREFIX, Browser, Rendered, only_dag, rendering, seeing

POSTS: dict[str, dict[str, Any]] = {"scale": {"workers": 3}, "notice": {"worker": "worker-0"}, "token": {}, "end": {}}
READS = {
    f"{API}/task": IDS,
    f"{API}/dag-run": {"dag_id": IDS["dag_id"], "run_id": IDS["run_id"]},
    f"{PREFIX}/report": IDS,
}


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rendered:
    return rendering(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def training(fake: FakeCluster) -> None:
    deferred(operator(deferrable=True), trying())


def untouched(fake: FakeCluster) -> bool:
    status = run_in(fake).status
    return (status.phase, status.world_size, len(status.workers)) == ("running", 2, 2)


@pytest.mark.parametrize("what", POSTS)
class TestChanges:
    def test_by_a_viewer(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        client = seeing(monkeypatch, "viewer")
        assert client.get(f"{API}/task", params=IDS).json()["may_edit"] is False
        assert client.post(f"{API}/{what}", json=IDS | POSTS[what], headers=CHANGING).status_code == 403
        assert untouched(fake)

    def test_by_nobody(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        client = seeing(monkeypatch, None)
        assert client.post(f"{API}/{what}", json=IDS | POSTS[what], headers=CHANGING).status_code == 401
        assert untouched(fake)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            CHANGING | {"Sec-Fetch-Site": "cross-site"},
            CHANGING | {"Sec-Fetch-Site": "same-site"},
            CHANGING | {"Origin": "https://elsewhere.example"},
            CHANGING | {"Origin": "null"},
            CHANGING | {"Content-Type": "text/plain"},
            CHANGING | {"Content-Type": "application/x-www-form-urlencoded"},
        ],
        ids=str,
    )
    def test_by_another_site_through_an_admins_browser(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str, headers: dict[str, str]
    ) -> None:
        client = seeing(monkeypatch)
        answer = client.post(f"{API}/{what}", json=IDS | POSTS[what], headers=headers)
        assert answer.status_code in (403, 415)
        assert untouched(fake)

    def test_of_a_dag_that_one_may_only_look_at(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        client = seeing(monkeypatch)
        only_dag(monkeypatch, "nightly", lambda method: method == "GET")
        assert client.get(f"{API}/task", params=IDS).status_code == 200
        assert client.post(f"{API}/{what}", json=IDS | POSTS[what], headers=CHANGING).status_code == 403
        assert untouched(fake)

    @pytest.mark.parametrize(
        "more", [{"workers": "+2"}, {"workers": 1.5}, {"workers": True}, {"seconds": -1}, {"map_index": "0"}, {"x": 1}]
    )
    def test_with_what_is_none(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str, more: dict[str, Any]
    ) -> None:
        answer = seeing(monkeypatch).post(f"{API}/{what}", json=IDS | POSTS[what] | more, headers=CHANGING)
        assert answer.status_code == 422
        assert untouched(fake)

    def test_with_a_body_that_is_long_or_does_not_say_how_long(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        client = seeing(monkeypatch)
        more = {"worker": "w" * access.LONGEST}
        assert client.post(f"{API}/{what}", json=IDS | more, headers=CHANGING).status_code == 413
        headers = CHANGING | {"Content-Type": "application/json"}

        async def endless() -> AsyncIterator[bytes]:
            yield b" "

        assert client.post(f"{API}/{what}", content=endless(), headers=headers).status_code == 411
        both = headers | {"Content-Length": "2", "Transfer-Encoding": "chunked"}
        assert client.post(f"{API}/{what}", content=endless(), headers=both).status_code == 411
        assert untouched(fake)


class TestAPool:
    @pytest.fixture(autouse=True)
    def up(self, tmp_path: Path) -> None:
        self.folder = pool_folder(tmp_path, "team-a")
        self.folder.create(PoolSettings("team-a", 0, 4))

    @pytest.mark.parametrize(
        ("role", "headers", "status"),
        [("viewer", CHANGING, 403), ("user", CHANGING, 403), (None, CHANGING, 401), ("admin", {}, 403)],
    )
    def test_is_resized_by_nobody_without_the_right_to_edit_airflows_pools(
        self, monkeypatch: pytest.MonkeyPatch, role: str | None, headers: dict[str, str], status: int
    ) -> None:
        client = seeing(monkeypatch, role)
        answer = client.post(f"{API}/pool", json={"pool": "team-a", "workers": 9}, headers=headers)
        assert answer.status_code == status
        assert self.folder.settings().maximum == 4
        if role:
            [shown] = client.get(f"{API}/runs").json()["pools"]
            assert shown["may_edit"] == (role == "admin")

    @pytest.mark.parametrize("body", [{"pool": "team-a", "workers": "9"}, {"pool": "team-a", "workers": 9, "x": 1}])
    def test_with_what_is_none(self, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
        assert seeing(monkeypatch).post(f"{API}/pool", json=body, headers=CHANGING).status_code == 422
        assert self.folder.settings().maximum == 4


@pytest.mark.parametrize("path", READS)
class TestLooks:
    def test_by_nobody(self, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        assert seeing(monkeypatch, None).get(path, params=READS[path]).status_code == 401

    def test_at_anothers_dag(self, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        client = seeing(monkeypatch)
        only_dag(monkeypatch, "mine")
        answer = client.get(path, params=READS[path])
        assert answer.status_code == 403
        assert NAME not in answer.text


def test_the_list_shows_nobody_elses_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    client = seeing(monkeypatch)
    assert client.get(f"{API}/runs").json()["total"] == 1
    only_dag(monkeypatch, "mine")
    answer = client.get(f"{API}/runs")
    assert answer.json()["total"] == 0
    assert "nightly" not in answer.text


def test_a_run_whose_name_fits_and_whose_owner_is_another(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the place can put a run of another DAG under the name of one's own."""
    run = run_in(fake)
    run.document = run.document.adopted(run.document.owner.replace('"nightly"', '"payroll"'), utc_now())
    page = seeing(monkeypatch).get(f"{API}/task", params=IDS).json()
    assert page["status"] is None


def test_words_of_a_run_come_as_data(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.publish(NAME, reason="<script>alert(1)</script>")
    answer = seeing(monkeypatch).get(f"{API}/task", params=IDS)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", ["index.html", "../app.py", "..%2Fapp.py", "%2e%2e/plugin.py", "built-from.txt", "x"])
def test_files_beside_the_assets(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    client: Browser = seeing(monkeypatch)
    assert client.get(f"{PREFIX}/static/{name}").status_code == 404
