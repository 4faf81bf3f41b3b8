"""Secrets of a run that do not stand in its environment under a secret's name; and texts that processes hand on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Event, EventKind, Phase, Status
from elastic_runtime.run.status_failure import FirstFailure
from elastic_training.airflow.sdk import mask_secret, redact
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main
from elastic_training.following.follow import Ending, Followed
from elastic_training.redaction.free_text import without_secrets
from elastic_training.redaction.values import TOO_MANY, Secrets, remember_secrets
from elastic_training.settings import Pods
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.operator_bench import NAME, operator, ref_in, run_in, trying

PLANTED = "sown-in-a-run"
WORDS = f"ValueError: cannot log in with {PLANTED}"


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """Airflow's own, with nothing in it before and after."""
    from airflow.sdk.log import _secrets_masker

    _secrets_masker().reset_masker()
    yield
    _secrets_masker().reset_masker()


def forget() -> None:
    """As an API server or a triggerer, which has run no task: what a worker knows, another process was told."""
    from airflow.sdk.log import _secrets_masker

    _secrets_masker().reset_masker()


def fail(fake: FakeCluster) -> None:
    first = FirstFailure(0, "worker-0", "0", 3, 1, utc_now(), WORDS, f"Traceback\n{WORDS}\n")
    fake.publish(NAME, first_failure=first, events=(Event(utc_now(), EventKind.FINISHED, WORDS),))
    fake.fail(NAME, FailureKind.RANK_FAILED, f"too many ranks failed; {first.summary}", 1)


class TestTheSpecNames:
    def test_variables_of_the_pods(self, fake: FakeCluster) -> None:
        with substituted("moon", fake):
            pods = Pods(env={"DB_PASSWORD": PLANTED, "LEVEL": "information"})
            train = operator(cluster="moon", image="trainer:1", pods=pods, wait_for_completion=False)
            train.execute({"ti": trying()})
        forget()
        spec = run_in(fake).spec
        assert spec.secrets == (PLANTED,)
        assert from_json(RunSpec, to_json(spec)) == spec
        assert Secrets.of(spec).hide(WORDS) == "ValueError: cannot log in with ***"

    def test_what_the_worker_s_masker_has_found(self, fake: FakeCluster) -> None:
        mask_secret(PLANTED)  # As Airflow does with a connection's password.
        environment = {"DATABASE_URL": f"postgres://me:{PLANTED}@host/data"}
        operator(environment=environment, wait_for_completion=False).execute({"ti": trying()})
        forget()
        assert Secrets.of(run_in(fake).spec).hide(WORDS) == "ValueError: cannot log in with ***"

    def test_nothing_without_need(self, fake: FakeCluster) -> None:
        operator(environment={"DB_PASSWORD": PLANTED, "SEED": "7"}, wait_for_completion=False).execute({"ti": trying()})
        assert "secrets" not in json.loads(to_json(run_in(fake).spec))


@pytest.mark.parametrize("name", ["HTTP_AUTHORIZATION", "SESSION_DSN"])
def test_names_that_airflow_counts_as_sensitive(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from airflow.sdk.log import _secrets_masker

    monkeypatch.setattr(_secrets_masker(), "sensitive_variables_fields", ["authorization", "session_dsn"])
    assert Secrets({name: PLANTED}).hide(WORDS).endswith("with ***")
    remember_secrets({name: PLANTED})
    assert redact(WORDS).endswith("with ***")


class TestTheTriggerSEvent:
    @pytest.fixture(autouse=True)
    def claimed(self, fake: FakeCluster) -> None:
        operator(environment={"DB_PASSWORD": PLANTED}, wait_for_completion=False).execute({"ti": trying()})
        fail(fake)
        forget()

    def event(self, fake: FakeCluster) -> dict[str, Any]:
        ref = ref_in(fake)
        trigger = TrainingRunTrigger("local", ref.name, ref.uid, "owner")
        status = run(fake.status(ref))
        found: dict[str, Any] = trigger._event(run(trigger._hidden(Followed(Ending.FINISHED, status, status.reason))))
        return found

    def test_has_none(self, fake: FakeCluster) -> None:
        event = self.event(fake)
        assert PLANTED not in json.dumps(event)
        assert "cannot log in with ***" in event["status"]["first_failure"]["traceback"]

    def test_nor_words_of_ranks_if_nothing_says_what_is_one(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(_: object) -> RunSpec:
            raise ClusterUnavailable("it does not answer")

        monkeypatch.setattr(fake, "spec", silent)
        event = self.event(fake)
        assert PLANTED not in json.dumps(event)
        assert event["status"]["failure"] == "rank_failed"


@pytest.mark.parametrize("words", [["show"], ["show", "--json"], ["report"], ["logs"], ["runs", "--json"]])
def test_at_a_terminal(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    operator(environment={"DB_PASSWORD": PLANTED}, wait_for_completion=False).execute({"ti": trying()})
    fake.write_log(NAME, WORDS)
    fail(fake)
    forget()
    capsys.readouterr()
    monkeypatch.setattr("elastic_training.console.command.actions.close", lambda: None)
    with suppress(SystemExit):
        main([words[0], *([NAME] if words[0] != "runs" else []), *words[1:]])
    shown = capsys.readouterr().out
    assert PLANTED not in shown
    assert "***" in shown or words[0] == "runs"
    assert NAME in shown or words[0] == "logs"


MANY = {f"TOKEN{number}": "a" * 30 + format(number, "x") for number in range(4000)}


class TestManyVariables:
    def test_hide_all_texts_instead_of_stalling(self) -> None:
        long = "a" * 900_000
        first = FirstFailure(0, "worker-0", "0", None, 1, utc_now(), long, long)
        status = Status("run", "uid", Phase.FAILED, long, utc_now(), first_failure=first)
        began = process_time()
        shown = without_secrets(status, Secrets(MANY).hide)
        assert process_time() - began < 2
        assert (shown.reason, shown.phase) == (TOO_MANY, Phase.FAILED)

    def test_below_that_a_text_is_read_as_far_as_a_launcher_writes(self) -> None:
        few = dict(list(MANY.items())[:600])
        status = Status("run", "uid", Phase.FAILED, "a" * 900_000 + PLANTED, utc_now())
        began = process_time()
        assert PLANTED not in without_secrets(status, Secrets(few).hide).reason
        assert process_time() - began < 2


def test_a_spec_of_an_older_release_has_no_further_secrets(tmp_path: Path) -> None:
    assert from_json(RunSpec, '{"name": "run", "uid": "1", "command": ["a"], "version": 1}').secrets == ()
