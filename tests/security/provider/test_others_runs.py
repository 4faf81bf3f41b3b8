"""A run that has the name of a task's run, and is another task's: no try of that task adopts, ends or removes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.claims import Action, Observed, Times, decide_claim
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import ClaimOutcome
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import MAX_LENGTH, run_name
from elastic_training.identity.ownership import Owner
from tests.unit.provider.operator_bench import NAME, operator, trying

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MINE = Owner("nightly", trying().run_id, "train", -1, 2, "mine")
OTHERS = {
    "dag": replace(MINE, dag_id="payroll"),
    "run": replace(MINE, run_id="manual__1"),
    "task": replace(MINE, task_id="evaluate\n2026-03-01 a line"),
    "index": replace(MINE, map_index=3),
}
SPEC = RunSpec(NAME, "wanted", ("python",), WorkersSpec(1, 1, 1))
FOUND = replace(SPEC, uid="found")


@given(
    theirs=st.sampled_from(list(OTHERS.values())),
    phase=st.sampled_from(Phase),
    fresh=st.booleans(),
    complete=st.booleans(),
    going=st.booleans(),
    cancelled=st.sampled_from([None, "enough"]),
    waited=st.sampled_from([0.0, 3600.0]),
)
def test_whatever_its_state_nothing_is_done_to_it(
    theirs: Owner, phase: Phase, fresh: bool, complete: bool, going: bool, cancelled: str | None, waited: float
) -> None:
    found = RunDocument(FOUND, theirs.text(), NOW - timedelta(days=1), NOW, cancelled, complete=complete, going=going)
    seen = Observed(Status(NAME, "found", phase, "so it is", NOW), launcher=True)
    step = decide_claim(found, seen, SPEC, MINE.text(), fresh=fresh, waited=waited, now=NOW, times=Times())
    assert step.action is Action.REFUSE
    assert step.note.isprintable()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("theirs", OTHERS.values(), ids=OTHERS)
def test_the_claim_says_whose_it_is(fake: FakeCluster, theirs: Owner, fresh: bool) -> None:
    ref = run(fake.claim(FOUND, theirs.text())).ref
    with pytest.raises(InvalidSettings, match=f"belongs to task {theirs.task_id[:8]}") as refused:
        run(fake.claim(SPEC, MINE.text(), fresh=fresh))
    assert str(refused.value).isprintable()
    assert run(fake.owner(ref)) == theirs.text()
    assert run(fake.status(ref)).phase is Phase.RUNNING


def test_its_result_is_not_the_tasks(fake: FakeCluster, store: str) -> None:
    run(fake.claim(FOUND, OTHERS["dag"].text()))
    fake.script(lambda: fake.succeed(NAME))
    with pytest.raises(AirflowFailException, match="payroll"):
        operator(checkpoint_uri=store).execute({"ti": trying()})


@pytest.mark.parametrize("owner", [replace(MINE, try_number=1, nonce="x", deployment="renamed").text(), "", "{}", "?"])
def test_a_run_of_the_task_or_of_nobody_is_adopted(fake: FakeCluster, owner: str) -> None:
    run(fake.claim(FOUND, owner))
    assert run(fake.claim(SPEC, MINE.text())).outcome is ClaimOutcome.ADOPTED


def test_a_name_has_80_bits_of_hash() -> None:
    # With 40, a million run ids that somebody chooses have two of one name.
    for ids in (("a", "r", "t"), ("d" * 200, "r", "t" * 200)):
        name = run_name(*ids)
        digest = name.rpartition("-")[2]
        assert len(digest) * 5 >= 80
        assert set(digest) <= set("abcdefghijklmnopqrstuvwxyz234567")
        assert len(name) <= MAX_LENGTH
