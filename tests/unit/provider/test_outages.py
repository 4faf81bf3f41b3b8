"""What is remembered of a place or a store that was slow to fail, for all who look at a page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound, StoreUnavailable
from elastic_training.archive import outages
from elastic_training.archive.outages import Outages, StillSilent

STORE = "the store s3://bucket"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later."""
    seconds: Iterator[float] = iter(range(100))
    monkeypatch.setattr(outages, "monotonic", lambda: float(next(seconds)))


def told_next(error: Exception) -> str | None:
    """What the next one who asks is told, after somebody was answered so; None: it may ask."""
    known = Outages()
    with pytest.raises(type(error)), known.asking(STORE):
        raise error
    try:
        with known.asking(STORE):
            return None
    except StillSilent as silent:
        return str(silent)


@pytest.mark.usefixtures("slow")
def test_an_outage_is_told_without_the_words_of_a_store_which_may_name_files_of_one_dag() -> None:
    told = told_next(StoreUnavailable("s3://bucket/reports/-/secret-dag-0123: connection reset"))
    assert told
    assert told.startswith(f"{STORE} has failed; it is asked again in")
    assert str(told_next(ClusterUnavailable("it has not answered in 3 s"))).startswith("it has not answered in 3 s;")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("kind", [RunNotFound, InvalidDocument])
def test_what_is_wrong_with_one_run_keeps_nobody_from_another(kind: type[Exception]) -> None:
    assert told_next(kind("it is about another task")) is None


def test_a_failure_that_held_nobody_up_is_not_remembered() -> None:
    assert told_next(StoreUnavailable("away")) is None
