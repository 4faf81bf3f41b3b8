"""A variable of one run whose value is a common word, in processes that DAGs share; and what its own page shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Event, EventKind
from elastic_runtime.run.status_failure import FirstFailure
from elastic_training import archive
from elastic_training.clusters.fake import FakeCluster
from elastic_training.redaction.values import Secrets
from tests.unit.provider.operator_bench import NAME, operator, run_in, trying
from tests.unit.provider.page_bench import API, IDS, PREFIX, Browser, Rendered, rendering, seeing

PLANTED = "sown-in-a-reason"


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Rendered:
    return rendering(monkeypatch, tmp_path, store)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Browser:
    return seeing(monkeypatch)


@pytest.fixture
def untaught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an API server is, which has run no task: what the operator has Airflow mask, another process was told."""
    monkeypatch.setattr("elastic_training.redaction.values.mask", lambda _: None)


def failing(fake: FakeCluster, store: str, **environment: str) -> None:
    operator(checkpoint_uri=store, environment=environment, wait_for_completion=False).execute({"ti": trying()})
    words = f"ValueError: cannot log in with {PLANTED}, failed"
    first = FirstFailure(0, "worker-0", "0", 3, 1, utc_now(), words, f"Traceback\n{words}\n")
    fake.publish(
        NAME,
        first_failure=first,
        returned=json.dumps({"token": PLANTED, "n": 1}),
        events=(Event(utc_now(), EventKind.FINISHED, words),),
    )
    fake.fail(NAME, FailureKind.RANK_FAILED, f"too many ranks failed; {first.summary}", 1)


@pytest.mark.usefixtures("untaught")
def test_the_process_of_all_is_taught_no_word(fake: FakeCluster, store: str, client: Browser) -> None:
    failing(fake, store, APP_TOKEN="failed", DB_PASSWORD="success")
    page = client.get(f"{API}/task", params=IDS).json()  # And has the end kept.
    assert archive.read(IDS["dag_id"], IDS["run_id"], IDS["task_id"]) is not None
    assert redact("the task has failed, not success") == "the task has failed, not success"
    assert page["status"]["phase"] == page["status"]["events"][0]["kind"].replace("finished", "failed") == "failed"


@pytest.mark.usefixtures("untaught")
def test_a_word_of_the_status_is_hidden_in_free_text_alone(fake: FakeCluster, store: str, client: Browser) -> None:
    failing(fake, store, APP_TOKEN="failed")
    for _ in range(2):  # Of the run in its place, and of what is kept.
        page = client.get(f"{API}/task", params=IDS).json()
        assert (page["status"]["phase"], page["status"]["failure"]) == ("failed", "rank_failed")
        assert "failed" not in page["status"]["reason"]
        assert client.get(f"{PREFIX}/report", params=IDS).status_code == 200
        fake.runs.clear()


@pytest.mark.usefixtures("untaught")
@pytest.mark.parametrize("gone", [False, True])
def test_the_page_hides_what_the_log_hides(fake: FakeCluster, store: str, client: Browser, gone: bool) -> None:
    failing(fake, store, APP_TOKEN=PLANTED)
    page = client.get(f"{API}/task", params=IDS)
    if gone:
        fake.runs.clear()
        page = client.get(f"{API}/task", params=IDS)
    shown = page.json()["status"]
    assert "cannot log in with ***" in shown["reason"]
    assert "***" in shown["first_failure"]["traceback"]
    texts = [page.text, client.get(f"{API}/runs").text, client.get(f"{PREFIX}/report", params=IDS).text]
    assert not [text for text in texts if PLANTED in text]
    kept = archive.read(IDS["dag_id"], IDS["run_id"], IDS["task_id"])
    assert kept is not None
    assert json.loads(kept.status.returned or "") == {"token": "***", "n": 1}


def test_the_result_of_a_task_has_its_phase(fake: FakeCluster, store: str) -> None:
    """In the worker, the log of the task is masked by Airflow itself, and its result has to be read by programs."""
    fake.script(lambda: fake.succeed(NAME))
    environment = {"APP_TOKEN": "succeeded"}
    result: Any = operator(checkpoint_uri=store, environment=environment).execute({"ti": trying()})
    assert result["phase"] == "succeeded"


def test_short_and_common_words_hide_nothing() -> None:
    assert Secrets({"APP_TOKEN": "true", "X_SECRET": "a", "PLAIN": "sown"}).hide("true a sown") == "true a sown"


@pytest.mark.parametrize(("ours", "theirs"), [("sown-abc-more", "abc-more-and"), ("abc-more", "sown-abc-more-and")])
def test_secrets_that_overlap_leave_nothing_of_each_other(
    monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str
) -> None:
    """Of ours and one that Airflow knows."""
    monkeypatch.setattr("elastic_training.redaction.values.redact", lambda text: text.replace(theirs, "***"))
    hide = Secrets({"APP_TOKEN": ours}).hide
    assert hide("failed with sown-abc-more-and") == "***"
    assert hide(f"failed with {ours}, and {theirs}") in ("***", "failed with ***, and ***")


def test_every_way_to_write_it_is_hidden() -> None:
    secret = "pla'nted\"in\\it"
    hide = Secrets({"APP_TOKEN": secret, "APP_TOKEN_2": f"{secret}-more"}).hide
    assert hide(f"{secret}-more {json.dumps(secret)} {secret!r}") == '*** "***" ' + repr(secret).replace(
        repr(secret)[1:-1], "***"
    )


def test_a_late_keeper_writes_where_the_task_says(
    fake: FakeCluster, store: str, client: Browser, tmp_path: Path
) -> None:
    """Not where the run's document says, which others may have written."""
    elsewhere = tmp_path / "elsewhere"
    operator(checkpoint_uri=f"file://{elsewhere}", wait_for_completion=False).execute({"ti": trying()})
    assert run_in(fake).spec.checkpoint is not None
    fake.succeed(NAME)
    page = client.get(f"{API}/task", params=IDS).json()
    assert not elsewhere.exists()
    assert archive.read(IDS["dag_id"], IDS["run_id"], IDS["task_id"]) is not None
    assert page["links"]["checkpoints"] == store
