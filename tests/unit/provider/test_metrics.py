"""Metrics through Airflow's own Stats: names, values, tags."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Stats

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Checkpoint, Phase, Series, Status, Usage
from elastic_runtime.run.status_progress import Progress
from elastic_training.airflow.versions import stats
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.listeners import listeners_of
from elastic_training.listeners.changes import Change, ChangeKind
from elastic_training.listeners.metrics import MetricsListener

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OWNER = Owner("nightly", "monday", "train", -1, 1, "nonce").text()
TRAINING = Status(
    "run",
    "1",
    Phase.RUNNING,
    "all is well",
    NOW,
    world_size=6,
    target_size=3,
    step=50,
    throughput=Series(1, (49, 50), (0.0, 1.0), (2.0, 4.0)),
    progress=Progress(200, 25.0, 60.0, 50.0, 90.0, "measured with 6 ranks"),
    metrics={"samples_per_second": 512.0, "loss": 0.5},
    checkpoint=Checkpoint("s3://bucket/run/40", 40, NOW - timedelta(seconds=12)),
)


def change(kind: ChangeKind, **more: Any) -> Change:
    return Change(kind, "run", "1", NOW, **more)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What came to Airflow's Stats of a worker, by name."""
    seen: dict[str, Any] = {}

    def remember(name: str, value: Any = 1, **more: Any) -> None:
        assert more == {"tags": {"dag_id": "nightly", "task_id": "train"}}
        seen[name] = value

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, method, staticmethod(remember))
    return seen


def test_gauges_of_a_status(sent: dict[str, Any]) -> None:
    run(MetricsListener(OWNER).handle(TRAINING, ()))
    assert sent == {
        "elastic_training.world_size": 6,
        "elastic_training.workers_wanted": 3,
        "elastic_training.step": 50,
        "elastic_training.progress_percent": 25.0,
        "elastic_training.time_left": 60.0,
        "elastic_training.time_left_least": 50.0,
        "elastic_training.time_left_most": 90.0,
        "elastic_training.steps_per_second": 4.0,
        "elastic_training.samples_per_second": 512.0,
        "elastic_training.checkpoint_age": 12.0,
    }


def test_gauges_come_now_and_then_and_when_something_happens(sent: dict[str, Any]) -> None:
    listener = MetricsListener(OWNER)
    run(listener.handle(TRAINING, ()))
    sent.clear()
    run(listener.handle(TRAINING, ()))
    assert sent == {}
    run(listener.handle(TRAINING, [change(ChangeKind.NOTICED)]))
    assert {"elastic_training.notices", "elastic_training.world_size"} <= set(sent)


def test_what_happens_is_counted_and_a_recovery_timed(sent: dict[str, Any]) -> None:
    news = [
        change(ChangeKind.CREATED),
        change(ChangeKind.RESIZED, world_size=3, before=2, seconds=0.0),
        change(ChangeKind.REFORMED, world_size=3, before=3, seconds=1.5),
        change(ChangeKind.CHECKPOINTED),
        change(ChangeKind.FINISHED, failure=FailureKind.LAUNCHER_LOST),
    ]
    run(MetricsListener(OWNER).handle(None, news))
    assert sent == {
        "elastic_training.runs.created": 1,
        "elastic_training.resizes": 1,
        "elastic_training.reformed": 1,
        "elastic_training.recovery": timedelta(seconds=1.5),
        "elastic_training.checkpoints": 1,
        "elastic_training.runs.ended.launcher_lost": 1,
    }
    run(MetricsListener(OWNER).handle(None, [change(ChangeKind.FINISHED)]))
    assert "elastic_training.runs.ended.succeeded" in sent


def test_the_time_of_a_run_that_is_over_is_counted_once(sent: dict[str, Any]) -> None:
    usage = (Usage("spot", "g4dn.xlarge", 90.0, 30.0), Usage(None, None, 10.4, 0.0))
    over = replace(TRAINING, phase=Phase.SUCCEEDED, usage=usage, lost_seconds={"standing": 5.0, "repeated": 2.0})
    listener = MetricsListener(OWNER)
    run(listener.handle(over, [change(ChangeKind.FINISHED)]))
    run(listener.handle(over, [change(ChangeKind.CHECKPOINTED)]))
    names = ("trained", "idle", "lost")
    assert [sent[f"elastic_training.spent_{name}_seconds"] for name in names] == [70, 30, 7]


def test_a_triggerer_has_stats_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has initialised before it started the process of the triggers."""
    from airflow.observability.stats import Stats as InTriggerer

    names = []
    monkeypatch.setattr(InTriggerer, "incr", staticmethod(lambda name, *_, **__: names.append(name)))
    asyncio.run(MetricsListener(OWNER).handle(None, [change(ChangeKind.NOTICED)]))
    assert names == ["elastic_training.notices"]
    assert stats(in_triggerer=True) is not stats(in_triggerer=False)


@pytest.mark.parametrize("backend", ["STATSD_ON", "OTEL_ON", "STATSD_DATADOG_ENABLED"])
def test_whoever_has_metrics_has_these(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listeners_of(OWNER, ()) == ()
    monkeypatch.setenv(f"AIRFLOW__METRICS__{backend}", "True")
    (listener,) = listeners_of(OWNER, ())
    assert isinstance(listener, MetricsListener)
