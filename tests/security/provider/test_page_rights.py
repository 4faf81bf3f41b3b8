"""Somebody who may look at a DAG's tasks, and not at their logs or XComs; and what no JSON can have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.launcher.record.series import noted
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.status import Event, EventKind, Outputs, Series, Usage
from elastic_runtime.run.status_failure import FirstFailure
from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import places, timeline
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying
from tests.unit.provider.page_bench import (
    API,
    CHANGING,
    IDS,
    PREFIX,
    Rendered,
    only_dag,
    rendering,
    seeing,
    with_timeline,
    without_rights,
)

LOGS, RESULTS, DOLLARS = "word-of-a-rank", "loss_of_theirs", "46.01"


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Rendered:
    found = rendering(monkeypatch, tmp_path, store)
    next(iter(found.values()))["price_book"] = "example"
    return found


@pytest.fixture
def failed(fake: FakeCluster, store: str) -> None:
    operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})
    first = FirstFailure(0, "worker-0", "0", 3, 1, utc_now(), LOGS, f"Traceback\n{LOGS}\n")
    fake.publish(
        NAME,
        first_failure=first,
        metrics={RESULTS: 0.5},
        series=noted({RESULTS: Series()}, {RESULTS: 0.5}, 40, utc_now()),
        returned=json.dumps(RESULTS),
        outputs=Outputs(f"{store}/{RESULTS}", 1, 1),
        usage=(Usage("spot", "g4dn.xlarge", 3600.0, 0.0),),
        deadline=DeadlineStatus(budget=40.0, spent=12.25, words=f"it costs {DOLLARS} $"),
        events=(
            Event(utc_now(), EventKind.FINISHED, f"failed: {LOGS}"),
            Event(utc_now(), EventKind.WARNING, LOGS),
            Event(utc_now(), EventKind.DEADLINE, f"it costs {DOLLARS} $; that is more than the budget"),
            Event(utc_now(), EventKind.HANDOVER, f"durable checkpoint of step 3 at {store}/{LOGS} in 1.00 s"),
            Event(utc_now(), EventKind.RESUMED, f"from the durable checkpoint of step 3 at {LOGS}"),
        ),
    )
    fake.fail(NAME, FailureKind.RANK_FAILED, f"too many ranks failed; {first.summary}", 1)


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    ("entity", "name", "hidden", "shown"),
    [(DagAccessEntity.TASK_LOGS, "logs", LOGS, RESULTS), (DagAccessEntity.XCOM, "results", RESULTS, LOGS)],
)
def test_parts_for_which_the_right_is_missing(  # what, of which right, in which place
    fake: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    gone: bool,
    entity: DagAccessEntity,
    name: str,
    hidden: str,
    shown: str,
) -> None:
    client = seeing(monkeypatch)
    full = client.get(f"{API}/task", params=IDS)  # And has the end kept.
    assert (full.json()["hidden"], LOGS in full.text, RESULTS in full.text) == ([], True, True)
    if gone:
        fake.runs.clear()
    without_rights(monkeypatch, entity)
    answer, report = client.get(f"{API}/task", params=IDS), client.get(f"{PREFIX}/report", params=IDS)
    assert answer.json()["hidden"] == [name]
    assert (hidden in answer.text, shown in answer.text) == (False, True)
    assert (hidden in report.text, shown in report.text) == (False, True)
    assert (answer.json()["cost"] is None) == (name == "results")
    assert any(each in answer.text + report.text for each in (DOLLARS, "12.25")) == (name == "logs")
    assert answer.json()["status"]["reason"].startswith("too many ranks failed; rank 0 on worker-0 failed first")
    assert answer.json()["status"]["first_failure"]["exit_code"] == 1


@pytest.mark.usefixtures("failed")
def test_the_list_has_neither_words_of_ranks_nor_a_cost_without_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    client = seeing(monkeypatch)
    [row] = client.get(f"{API}/runs").json()["runs"]
    assert row["cost"] is not None
    assert row["reason"].endswith("failed first")
    assert client.get(f"{API}/runs", params={"search": LOGS}).json()["total"] == 0
    without_rights(monkeypatch, DagAccessEntity.XCOM)
    [row] = client.get(f"{API}/runs").json()["runs"]
    assert row["cost"] is None


def test_the_list_names_no_budget(fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})
    fake.fail(NAME, FailureKind.BUDGET, f"the budget of {DOLLARS} $ is reached: 45.50 $ are spent")
    client = seeing(monkeypatch)
    [row] = client.get(f"{API}/runs").json()["runs"]
    assert row["reason"] == "the budget of … $ is reached: … $ are spent"
    assert client.get(f"{API}/runs", params={"search": DOLLARS}).json()["total"] == 0


class TestAPlaceThatIsNotReached:
    @pytest.fixture(autouse=True)
    def unreachable(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listing = fake.list
        monkeypatch.setattr(places, "FRESH", 0.0)

        async def refused() -> None:
            raise ClusterUnavailable("10.2.3.4:6443 refused it")

        monkeypatch.setattr(fake, "list", refused)

    def test_why_is_told_to_who_may_see_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = seeing(monkeypatch)
        page = client.get(f"{API}/runs").json()
        assert "10.2.3.4" in page["unreachable"][0]["message"]
        without_rights(monkeypatch, connections=False)
        page = client.get(f"{API}/runs").json()
        assert (page["unreachable"], page["incomplete"]) == ([], True)

    def test_and_to_who_has_a_run_there(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        deferred(operator(deferrable=True), trying())
        client, refused = seeing(monkeypatch), fake.list
        monkeypatch.setattr(fake, "list", self.listing)
        assert client.get(f"{API}/runs").json()["total"] == 1
        monkeypatch.setattr(fake, "list", refused)
        without_rights(monkeypatch, connections=False)
        assert "10.2.3.4" in client.get(f"{API}/runs").json()["unreachable"][0]["message"]
        without_rights(monkeypatch, *DagAccessEntity, connections=False)
        assert "10.2.3.4" not in client.get(f"{API}/runs").text
        only_dag(monkeypatch, "mine")
        assert client.get(f"{API}/runs").status_code == 200


class TestATaskWhosePlaceIsNotReached:
    @pytest.fixture(autouse=True)
    def unreachable(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refused(_: object) -> None:
            raise ClusterUnavailable("10.2.3.4:6443 refused it")

        monkeypatch.setattr(fake, "find", refused)

    @pytest.mark.parametrize("path", [f"{API}/task", f"{PREFIX}/report"])
    def test_why_is_not_for_every_viewer_of_the_dag(self, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        client = seeing(monkeypatch)
        without_rights(monkeypatch, DagAccessEntity.TASK_LOGS, connections=False)
        answer = client.get(path, params=IDS)
        assert "10.2.3.4" not in answer.text
        assert "does not answer" in answer.json()["message"]

    @pytest.mark.parametrize("connections", [False, True])
    def test_but_for_readers_of_its_log_or_of_connections(
        self, monkeypatch: pytest.MonkeyPatch, connections: bool
    ) -> None:
        client = seeing(monkeypatch)
        hidden = [DagAccessEntity.TASK_LOGS] if connections else []
        without_rights(monkeypatch, *hidden, connections=connections)
        assert "10.2.3.4" in client.get(f"{API}/task", params=IDS).json()["message"]


@pytest.mark.parametrize("what", ["scale", "notice", "end"])
@pytest.mark.parametrize(
    "more",
    ['"seconds": 1e999', '"workers": 1e999', '"seconds": NaN', '"worker": "\\ud800"', '"x": "\\udfff"', '"x": -1e999'],
)
def test_what_no_json_can_have_is_refused(monkeypatch: pytest.MonkeyPatch, what: str, more: str) -> None:
    body = json.dumps(IDS | {"workers": 3, "worker": "worker-0"})[:-1] + f", {more}}}"
    headers = CHANGING | {"Content-Type": "application/json"}
    answer = seeing(monkeypatch).post(f"{API}/{what}", content=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["message"]


@pytest.mark.parametrize("name", ["dag_id", "run_id", "task_id"])
def test_half_a_character_in_an_id_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    headers = CHANGING | {"Content-Type": "application/json"}
    body = json.dumps(IDS | {name: "\ud800"})
    assert seeing(monkeypatch).post(f"{API}/end", content=body, headers=headers).status_code == 422
    assert (
        seeing(monkeypatch).get(f"{API}/task?{name}=%ED%A0%80&" + "&".join(f"{key}=x" for key in IDS)).status_code
        == 200
    )


@pytest.mark.parametrize("entity", [DagAccessEntity.TASK_LOGS, DagAccessEntity.XCOM])
def test_a_timeline_needs_the_rights_to_log_and_results(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch, entity: DagAccessEntity
) -> None:
    client = seeing(monkeypatch)
    with_timeline(fake, store)
    assert client.get(f"{PREFIX}/timeline", params=IDS).status_code == 200
    without_rights(monkeypatch, entity)
    assert client.get(f"{PREFIX}/timeline", params=IDS).status_code == 403
    assert client.get(f"{API}/task", params=IDS).json()["links"]["timeline"] is None


@pytest.mark.parametrize(
    "uri",
    [
        "{store}/elsewhere/traces/timeline-1.json.gz",
        "{store}/{name}/../other/traces/timeline-1.json.gz",
        "{store}/{name}/outputs-1/secret.json",
        "{store}2/{name}/traces/timeline-1.json.gz",
        "file:///etc/traces/timeline-1.json.gz",
        "s3://elsewhere/{name}/traces/timeline-1.json.gz",
    ],
)
def test_a_run_cannot_have_other_files_served_as_its_timeline(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    client = seeing(monkeypatch)
    with_timeline(fake, store)
    fake.publish(NAME, timeline=uri.format(store=store, name=NAME))
    answer = client.get(f"{PREFIX}/timeline", params=IDS)
    assert answer.status_code == 404
    assert "is not under the task's checkpoint_uri" in answer.json()["message"]


def test_a_timeline_that_is_a_link_or_too_large_is_not_read(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = seeing(monkeypatch)
    kept = with_timeline(fake, store)
    os.truncate(kept, timeline.LARGEST + 1)
    answer = client.get(f"{PREFIX}/timeline", params=IDS)
    assert (answer.status_code, "Copy it from the store" in answer.text) == (404, True)
    (tmp_path / "secret").write_text("secret")
    kept.unlink()
    kept.symlink_to(tmp_path / "secret")
    answer = client.get(f"{PREFIX}/timeline", params=IDS)
    assert (answer.status_code, "Copy it from the store" in answer.text) == (404, True)
