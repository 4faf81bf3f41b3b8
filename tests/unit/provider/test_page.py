"""What the page of a run says, through its routes: while the run goes on, afterwards, and where there is none."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.launcher.record.series import noted
from elastic_runtime.pool.folder import pool_folder
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_runtime.run.join import JoinToken
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.status import Phase, Series, Usage
from elastic_runtime.run.status_progress import Progress
from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import changes, places
from elastic_training.console.plugin import ElasticTrainingPlugin
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying
from tests.unit.provider.page_bench import (
    API,
    CHANGING,
    IDS,
    PREFIX,
    Browser,
    Rendered,
    rendering,
    seeing,
    with_timeline,
    without_rights,
)
from tests.unit.provider.virtual_time import run_virtually


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Rendered:
    return rendering(monkeypatch, tmp_path, store)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Browser:
    return seeing(monkeypatch)


def shown(client: Browser, **more: Any) -> dict[str, Any]:
    answer = client.get(f"{API}/task", params={**IDS, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


class TestARun:
    def test_that_goes_on(self, fake: FakeCluster, store: str, client: Browser) -> None:
        deferred(operator(checkpoint_uri=store, deferrable=True), trying())
        curve = noted({"loss": Series()}, {"loss": 0.5}, 40, utc_now())
        fake.publish(NAME, step=40, series=curve, metrics={"loss": 0.5})
        page = shown(client)
        assert page["run"] | IDS == page["run"]
        assert (page["run"]["name"], page["run"]["place"], page["run"]["tries"]) == (NAME, "local", [1])
        assert (page["live"], page["may_edit"], page["limits"]) == (True, True, {"minimum": 1, "maximum": 4})
        assert (page["status"]["phase"], page["status"]["world_size"], page["status"]["step"]) == ("running", 2, 40)
        assert page["status"]["series"]["loss"]["values"] == [0.5]
        assert page["links"]["checkpoints"].startswith(store)
        report = client.get(f"{PREFIX}/{page['links']['report']}")
        assert report.status_code == 200
        assert NAME in report.text

    def test_its_log_is_airflows(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        assert shown(client)["links"]["log"] == (
            "../dags/nightly/runs/manual__2026-11-21T08%3A00%3A00%2B00%3A00/tasks/train?try_number=1"
        )

    def test_the_log_of_a_mapped_task(self, fake: FakeCluster, client: Browser, rendered: Rendered) -> None:
        rendered[("nightly", IDS["run_id"], "train", 3)] = next(iter(rendered.values()))
        deferred(operator(deferrable=True), trying(map_index=3))
        assert shown(client, map_index=3)["links"]["log"].endswith("/tasks/train/mapped/3?try_number=1")

    def test_what_it_has_cost_so_far(self, fake: FakeCluster, client: Browser, rendered: Rendered) -> None:
        next(iter(rendered.values()))["price_book"] = "example"
        deferred(operator(deferrable=True), trying())
        fake.publish(NAME, usage=(Usage("spot", "g4dn.xlarge", 3600.0, 0.0),))
        assert float(shown(client)["cost"]["cost"]) > 0

    def test_that_is_over_and_gone_from_its_place(self, fake: FakeCluster, store: str, client: Browser) -> None:
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store, on_finish="delete").execute({"ti": trying()})
        page = shown(client)
        assert (page["status"]["phase"], page["live"], page["may_edit"]) == ("succeeded", False, False)
        report = client.get(f"{PREFIX}/{page['links']['report']}")
        assert report.status_code == 200
        assert NAME in report.text
        policy = report.headers["Content-Security-Policy"]
        assert "sandbox allow-scripts;" in policy, "and nothing more: no access to what is Airflow's"
        assert "unsafe" not in policy

    def test_an_earlier_try(self, fake: FakeCluster, store: str, client: Browser) -> None:
        train = operator(checkpoint_uri=store, deferrable=True)
        parting = deferred(train, first := trying())
        fake.fail(NAME, FailureKind.RANK_FAILED, "no such sample", 1)
        event = run_virtually(anext(parting.trigger.run()))
        with pytest.raises(Exception, match="no such sample"):
            train.execute_complete({"ti": first}, event.payload)
        deferred(operator(checkpoint_uri=store, deferrable=True), trying(2))
        page = shown(client)
        assert (page["run"]["try_number"], page["run"]["tries"], page["live"]) == (2, [1, 2], True)
        before = shown(client, try_number=1)
        assert (before["status"]["phase"], before["status"]["reason"]) == ("failed", "no such sample")
        assert (before["live"], before["may_edit"]) == (False, False)
        assert shown(client, try_number=3)["message"] == "Nothing was kept of try 3."

    def test_its_timeline_is_served_from_the_tasks_store(self, fake: FakeCluster, store: str, client: Browser) -> None:
        kept = with_timeline(fake, store)
        link = shown(client)["links"]["timeline"]
        answer = client.get(f"{PREFIX}/{link}")
        assert (answer.status_code, answer.content) == (200, kept.read_bytes())
        assert answer.headers["Content-Type"] == "application/gzip"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{NAME}-timeline.json.gz"'

    def test_it_has_no_timeline(self, fake: FakeCluster, store: str, client: Browser) -> None:
        deferred(operator(checkpoint_uri=store, deferrable=True), trying())
        assert shown(client)["links"]["timeline"] is None
        answer = client.get(f"{PREFIX}/timeline", params=IDS)
        assert answer.status_code == 404
        assert "no timeline, or not yet" in answer.json()["message"]

    def test_there_is_none_yet(self, fake: FakeCluster, client: Browser) -> None:
        page = shown(client)
        assert page["status"] is None
        assert page["message"].startswith("There is no run of this task")

    def test_the_task_is_no_training(self, fake: FakeCluster, client: Browser, rendered: Rendered) -> None:
        rendered[("nightly", IDS["run_id"], "more", -1)] = {"cluster": "local", "training_task_id": "train"}
        for task_id in ("more", "prepare"):
            assert shown(client, task_id=task_id)["message"].startswith("This task is not a training")

    def test_its_place_does_not_answer(
        self, fake: FakeCluster, client: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(name: str) -> None:
            raise ClusterUnavailable("connection refused")

        monkeypatch.setattr(fake, "find", silent)
        assert shown(client)["message"] == "cannot read the run's status from local: connection refused"


class TestChanges:
    def test_a_size(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        answer = client.post(f"{API}/scale", json={**IDS, "workers": 3}, headers=CHANGING)
        assert (answer.status_code, run_in(fake).status.world_size) == (200, 3)

    def test_a_size_out_of_bounds(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        answer = client.post(f"{API}/scale", json={**IDS, "workers": 9}, headers=CHANGING)
        assert answer.status_code == 422
        assert "9" in answer.json()["message"]
        assert run_in(fake).status.world_size == 2

    def test_a_pause_and_its_end(self, fake: FakeCluster, store: str, client: Browser) -> None:
        deferred(operator(checkpoint_uri=store, deferrable=True), trying())
        assert client.post(f"{API}/resume", json=IDS, headers=CHANGING).status_code == 409
        assert client.post(f"{API}/pause", json=IDS, headers=CHANGING).status_code == 200
        status = shown(client)["status"]
        assert (status["phase"], status["pause"]["by"], status["pause"]["workers"]) == ("paused", "ann", 2)
        assert client.post(f"{API}/scale", json={**IDS, "workers": 3}, headers=CHANGING).status_code == 409
        assert client.post(f"{API}/resume", json=IDS, headers=CHANGING).status_code == 200
        assert (run_in(fake).status.world_size, shown(client)["status"].get("pause")) == (2, None)

    def test_a_pause_that_would_lose_the_state(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        answer = client.post(f"{API}/pause", json=IDS, headers=CHANGING)
        assert answer.status_code == 422
        assert "has no checkpoint store" in answer.json()["message"]

    def test_a_notice(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        worker = run_in(fake).status.workers[0].name
        answer = client.post(f"{API}/notice", json={**IDS, "worker": worker, "seconds": 30}, headers=CHANGING)
        assert answer.status_code == 200
        assert "left" in {str(each.state) for each in run_in(fake).status.workers if each.name == worker}
        assert client.post(f"{API}/notice", json={**IDS, "worker": "x"}, headers=CHANGING).status_code == 422

    def test_a_token_is_in_the_answer_and_in_no_log(
        self, fake: FakeCluster, client: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        deferred(operator(workers={"min": 1, "max": 4, "join": {"address": "10.0.0.5"}}, deferrable=True), trying())
        token = JoinToken.create(b"p" * 32).text()
        command = f"elastic-join {NAME} --at 10.0.0.5:7443 --token {token}"

        async def made(*_: object) -> str:
            return command

        monkeypatch.setattr(fake, "join_command", made)
        assert shown(client)["joinable"] is True
        with caplog.at_level("DEBUG"):
            answer = client.post(f"{API}/token", json=IDS, headers=CHANGING)
        assert answer.json() == {"command": command}
        assert answer.headers["Cache-Control"] == "no-store"
        assert "has asked for a token" in caplog.text
        assert token not in caplog.text

    def test_a_run_that_no_machine_may_join_has_no_token(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        assert shown(client)["joinable"] is False
        answer = client.post(f"{API}/token", json=IDS, headers=CHANGING)
        assert answer.status_code == 422
        assert "machines may not join the run" in answer.json()["message"]

    def test_the_end(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        assert client.post(f"{API}/end", json=IDS, headers=CHANGING).status_code == 200
        status = run_in(fake).status
        assert (status.phase, status.reason) == (Phase.FAILED, "ann has ended it on its page")
        assert client.post(f"{API}/end", json=IDS, headers=CHANGING).status_code == 409

    def test_without_a_run(self, fake: FakeCluster, client: Browser) -> None:
        assert client.post(f"{API}/end", json=IDS, headers=CHANGING).status_code == 404


class TestAPool:
    @pytest.fixture(autouse=True)
    def up(self, fake: FakeCluster, tmp_path: Path) -> None:
        pool_folder(tmp_path, "team-a").create(PoolSettings("team-a", 2, 4))

    def test_is_resized(self, client: Browser, tmp_path: Path) -> None:
        [shown] = client.get(f"{API}/runs").json()["pools"]
        assert (shown["least"], shown["most"], shown["may_edit"]) == (2, 4, True)
        assert client.post(f"{API}/pool", json={"pool": "team-a", "workers": 6}, headers=CHANGING).status_code == 200
        assert pool_folder(tmp_path, "team-a").settings().maximum == 6

    @pytest.mark.parametrize(
        ("name", "workers", "status", "words"),
        [
            ("team-a", 1, 422, "pool.min"),
            ("team-a", 1001, 422, "1 to 1000"),
            ("team-b", 3, 404, "is not up"),
            ("../team-a", 3, 422, "not the name of a pool"),
        ],
    )
    def test_that_cannot_be(self, client: Browser, name: str, workers: int, status: int, words: str) -> None:
        answer = client.post(f"{API}/pool", json={"pool": name, "workers": workers}, headers=CHANGING)
        assert (answer.status_code, words in answer.json()["message"]) == (status, True)

    def test_of_a_place_that_is_not_listed(self, client: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changes, "known_places", lambda: ("prod",))
        answer = client.post(f"{API}/pool", json={"pool": "team-a", "workers": 3}, headers=CHANGING)
        assert (answer.status_code, "places" in answer.json()["message"]) == (404, True)

    def test_has_runs_with_a_link_and_their_place(self, fake: FakeCluster, client: Browser, tmp_path: Path) -> None:
        deferred(operator(deferrable=True), trying())
        document = run_in(fake).document
        run_in(fake).document = replace(document, spec=replace(document.spec, pool=PoolSpec("team-a")))
        run_row = PoolRun(NAME, "uid", 1, False, 1, 2, 2, 2, ("worker-0", "worker-1"), "")
        pool_folder(tmp_path, "team-a").write_status(PoolStatus(PoolSettings("team-a", 2, 4), 4, 2, (run_row,)))
        found = client.get(f"{API}/runs", params={"place": "pool:team-a"}).json()
        assert [each["name"] for each in found["runs"]] == [NAME]
        assert {name: found["pools"][0]["runs"][0][name] for name in IDS} == IDS


class TestLists:
    def test_the_trainings_of_a_dag_run(self, fake: FakeCluster, client: Browser, rendered: Rendered) -> None:
        rendered[("nightly", IDS["run_id"], "train", 0)] = next(iter(rendered.values()))
        rendered[("nightly", IDS["run_id"], "more", -1)] = {"cluster": "local"}
        deferred(operator(deferrable=True), trying())
        answer = client.get(f"{API}/dag-run", params={"dag_id": "nightly", "run_id": IDS["run_id"]})
        [newest, mapped] = answer.json()["tasks"]
        assert (newest["name"], newest["phase"], newest["world_size"]) == (NAME, "running", 2)
        assert (newest["step"], newest["started"] is None) == (None, False)
        assert (mapped["map_index"], mapped["phase"], mapped["started"]) == (0, None, None)

    def test_have_percent_and_time_left(self, fake: FakeCluster, client: Browser) -> None:
        deferred(operator(deferrable=True), trying())
        progress = Progress(200, 20.0, 60.0, 50.0, 90.0, "measured with 2 ranks")
        fake.publish(NAME, step=40, progress=progress)
        dag_run = client.get(f"{API}/dag-run", params={"dag_id": "nightly", "run_id": IDS["run_id"]}).json()["tasks"]
        runs = client.get(f"{API}/runs").json()["runs"]
        for [row] in (dag_run, runs):
            assert row["progress"] == asdict(progress)
        assert shown(client)["status"]["progress"] == asdict(progress)

    def test_all_runs(self, fake: FakeCluster, client: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elastic_training.console.places.known_places", lambda: ("local", "no such!"))
        for number in range(5):
            deferred(operator(deferrable=True), trying(map_index=number))
        fake.succeed(next(iter(fake.runs)))
        answer = client.get(f"{API}/runs", params={"sort": "name", "descending": False, "limit": 2, "offset": 1})
        found = answer.json()
        assert (found["total"], [each["name"] for each in found["runs"]]) == (5, sorted(fake.runs)[1:3])
        [unreachable] = found["unreachable"]
        assert unreachable["place"] == "no such!"
        assert client.get(f"{API}/runs", params={"phase": "succeeded"}).json()["total"] == 1
        assert client.get(f"{API}/runs", params={"search": "NIGHTLY"}).json()["total"] == 5
        assert client.get(f"{API}/runs", params={"search": "weekly"}).json()["total"] == 0

    def test_by_cost_and_by_end(self, fake: FakeCluster, client: Browser, rendered: Rendered) -> None:
        settings = next(iter(rendered.values()))
        names = []
        for number, book in enumerate(("example", "example", None)):
            rendered[("nightly", IDS["run_id"], "train", number)] = settings | {"price_book": book}
            deferred(operator(deferrable=True), trying(map_index=number))
            names.append(next(reversed(fake.runs)))
            fake.publish(names[-1], usage=(Usage("spot", "g4dn.xlarge", 3600.0 * (number + 1), 0.0),))
        fake.succeed(names[0])
        found = client.get(f"{API}/runs", params={"sort": "cost"}).json()["runs"]
        assert [each["name"] for each in found] == [names[1], names[0], names[2]]
        assert Decimal(found[0]["cost"]) == 2 * Decimal(found[1]["cost"]) > 0
        assert found[2]["cost"] is None
        found = client.get(f"{API}/runs", params={"sort": "finished"}).json()["runs"]
        assert found[0]["name"] == names[0]

    def test_costs_of_all_runs(
        self, fake: FakeCluster, client: Browser, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = next(iter(rendered.values()))
        for number in range(2):
            rendered[("nightly", IDS["run_id"], "train", number)] = settings | {"price_book": "example"}
            deferred(operator(deferrable=True), trying(map_index=number))
            fake.publish(next(reversed(fake.runs)), usage=(Usage("spot", "g4dn.xlarge", 3600.0, 1800.0),))
        found = client.get(f"{API}/costs", params={"by": "dag"}).json()
        [nightly] = found["totals"]
        assert (nightly["name"], nightly["runs"], nightly["trained_seconds"]) == ("nightly", 2, 3600.0)
        assert Decimal(nightly["cost"]) > Decimal(nightly["idle_cost"]) > 0
        table = client.get(f"{API}/costs", params={"by": "place", "csv": True})
        assert table.headers["content-type"].startswith("text/csv")
        assert table.text.splitlines()[1].startswith("local,2,0,")
        assert client.get(f"{API}/costs", params={"by": "colour"}).status_code == 422
        without_rights(monkeypatch, DagAccessEntity.XCOM)
        assert client.get(f"{API}/costs").json()["totals"] == []

    def test_places_are_asked_once_however_many_people_look(
        self, fake: FakeCluster, client: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = Counter[str]()
        list_runs = fake.list

        async def counted() -> Any:
            asked["list"] += 1
            return await list_runs()

        now = [100.0]
        monkeypatch.setattr(fake, "list", counted)
        monkeypatch.setattr(places, "monotonic", lambda: now[0])
        with ThreadPoolExecutor(5) as people:
            answers = list(people.map(lambda _: client.get(f"{API}/runs").json()["total"], range(10)))
        assert (answers, asked["list"]) == ([0] * 10, 1)
        deferred(operator(deferrable=True), trying())
        now[0] += places.FRESH
        assert (client.get(f"{API}/runs").json()["total"], asked["list"]) == (1, 2)

    def test_places_that_are_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__PLACES", "local, spot/training,,local")
        assert places.known_places() == ("local", "spot/training")


class TestInAirflow:
    def test_the_page_itself(self, client: Browser) -> None:
        for path in ("/", "/task?dag_id=x", "/dag-run"):
            answer = client.get(PREFIX + path)
            assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
            assert "static/page.js" in answer.text
        assert client.get(f"{PREFIX}/static/page.js").headers["Content-Type"].startswith("text/javascript")

    def test_in_a_checkout_where_it_is_not_built(
        self, client: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("elastic_training.console.app.files", lambda _: tmp_path)
        unbuilt = seeing(monkeypatch)
        answer = unbuilt.get(f"{PREFIX}/")
        assert answer.status_code == 503
        assert "make frontend" in answer.text
        asset = unbuilt.get(f"{PREFIX}/static/page.js")
        assert asset.status_code == 404
        assert "make frontend" in asset.json()["detail"]

    def test_what_airflow_is_told(self) -> None:
        views = {each["destination"]: each for each in ElasticTrainingPlugin.external_views}
        assert set(views) == {"task_instance", "dag_run", "nav"}
        assert len({each["url_route"] for each in views.values()}) == 3
        assert views["task_instance"]["href"] == (
            "/elastic-training/task?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
        )
        json.dumps(ElasticTrainingPlugin.external_views)
