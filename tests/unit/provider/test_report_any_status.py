"""A run's report: whatever its status holds, a page comes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import (
    Checkpoint,
    Event,
    EventKind,
    Phase,
    Series,
    SizeAsked,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)
from elastic_runtime.run.status_figures import GpuFigures, Hardware, HardwareColumn
from elastic_training.report import render_report
from tests.report_data import data_of
from tests.unit.provider.reported import EMPTY

TAG = re.compile(r"</?[a-z][^>]*>|<!--", re.IGNORECASE)
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
PLAIN = render_report(EMPTY)
TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["</script><b>&", "\x00\x1b[31m", "\ud800", "\"'><svg>"]
)
TIMES = st.datetimes(timezones=st.just(UTC))
COUNTS = st.integers(0, 10**12)
SERIES = st.builds(
    Series,
    stride=st.integers(1, 100),
    steps=st.lists(st.integers(), max_size=5).map(tuple),
    times=st.lists(st.floats(), max_size=5).map(tuple),
    values=st.lists(st.floats(), max_size=5).map(tuple),
)


HARDWARE = st.builds(
    Hardware,
    times=st.lists(st.floats(), max_size=5).map(tuple),
    columns=st.dictionaries(
        st.sampled_from(HardwareColumn) | TEXTS, st.lists(st.none() | st.floats(), max_size=5).map(tuple), max_size=3
    ),
)


def some(of: Any, /, **fields: Any) -> Any:
    return st.lists(st.builds(of, **fields), max_size=3).map(tuple)


STATUSES = st.builds(
    Status,
    *(TEXTS, TEXTS, st.sampled_from(Phase), TEXTS, TIMES),
    started=st.none() | TIMES,
    finished=st.none() | TIMES,
    failure=st.none() | st.sampled_from(FailureKind),
    step=st.none() | st.integers(),
    metrics=st.dictionaries(TEXTS, st.floats(), max_size=3),
    series=st.dictionaries(TEXTS, SERIES, max_size=3),
    throughput=SERIES,
    workers=some(
        WorkerStatus,
        name=TEXTS,
        node=TEXTS,
        state=st.sampled_from(WorkerState),
        since=TIMES,
        slots=COUNTS,
        seconds=st.floats(),
        instance_type=st.none() | TEXTS,
        cpu_percent=st.none() | st.floats(),
        step_seconds=st.none() | st.floats(),
        step_skew=st.none() | st.floats(),
        gpus=some(
            GpuFigures, index=COUNTS, name=TEXTS, percent=st.none() | st.floats(), memory_bytes=st.none() | COUNTS
        ),
    ),
    sample_throughput=SERIES,
    lost_seconds=st.dictionaries(TEXTS, st.floats(), max_size=3),
    hardware=st.dictionaries(TEXTS, HARDWARE, max_size=3),
    events=some(Event, time=TIMES, kind=st.sampled_from(EventKind), message=TEXTS, step=st.none() | st.integers()),
    checkpoint=st.none() | st.builds(Checkpoint, uri=TEXTS, step=COUNTS, time=TIMES),
    history=some(World, time=TIMES, size=COUNTS, generation=COUNTS, step=st.none() | st.integers()),
    asked=some(SizeAsked, time=TIMES, workers=st.integers()),
    worker_seconds=st.dictionaries(TEXTS, st.floats(), max_size=3),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STATUSES, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_every_status_makes_a_page(status: Status, figures: dict[str, str]) -> None:
    html = render_report(status, figures)
    html.encode()
    assert data_of(html)["status"]["phase"] == status.phase
    assert TAG.findall(html) == TAG.findall(PLAIN)


@given(TEXTS)
def test_hostile_texts_stay_texts(text: str) -> None:
    hostile = f"</script><!--<b>{text}</b>"
    html = render_report(replace(EMPTY, reason=hostile, run=hostile))
    assert data_of(html)["status"]["reason"] == hostile
    assert TAG.findall(html) == TAG.findall(PLAIN)
    assert not ODD.search(html), "nothing of it reaches a terminal, or ends a line"
