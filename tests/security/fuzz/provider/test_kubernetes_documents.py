"""What Airflow's side reads of a run on Kubernetes: annotations, ConfigMaps, what objects and nodes say, log lines."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import to_json, to_plain
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.kubernetes import diagnosis, nodes, quantities
from elastic_runtime.kubernetes.objects import Event, Node, Object, Pod
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import Term
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.document import StoredLogLease
from elastic_training.clusters.kubernetes.documents import root
from elastic_training.clusters.kubernetes.status.judgement import read_published
from elastic_training.clusters.kubernetes.watching import cursor
from tests.security.fuzz.inputs import inputs, texts, thorough

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.timeout(600)]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPEC = RunSpec("run", "uid", ("python", "train.py"))
STATUS = Status("run", "uid", Phase.RUNNING, "reason", NOON)
METADATA = {"name": "run", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-21T12:00:00Z"}
WORDS = [
    "ErrImagePull: ",
    "exceeded quota: q, requested: cpu=4, limited: cpu=2 ",
    "Unschedulable: ",
    " not found",
    "secret ",
]
words = st.lists(texts | st.sampled_from(WORDS), max_size=6).map("".join)


def text_of(*documents: object) -> st.SearchStrategy[str]:
    """As the API server hands out text: UTF-8."""
    return inputs(*documents).map(lambda data: data.decode(errors="replace"))


@thorough
@given(
    text_of(to_plain(SPEC)),
    text_of(b"2026-11-21T12:00:00.000Z"),
    text_of(to_plain(StoredLogLease("token", "cursor"))),
    text_of(["request"]),
)
def test_a_root_is_a_run_s_or_refused(spec: str, lease: str, log: str, requests: str) -> None:
    marks = {runobjects.LEASE: lease, runobjects.LOG_LEASE: log, runobjects.REQUESTS: requests, runobjects.OWNER: lease}
    honest = {runobjects.SPEC_KEY: to_json(SPEC)}
    for data, kept in (({runobjects.SPEC_KEY: spec}, marks), *((honest, {key: marks[key]}) for key in marks)):
        thing = Object({"metadata": {**METADATA, "annotations": kept}, "data": data})
        with contextlib.suppress(InvalidDocument, InvalidSettings):
            found = root.document(thing)
            root.difference(found, found.asked_to_end("reason"))


@thorough
@given(text_of(to_plain(STATUS)), text_of(to_plain(Term(1, "uid", 1, NOON))))
def test_a_status_is_read_or_refused(status: str, term: str) -> None:
    raw = {"data": {runobjects.STATUS_KEY: status}, "metadata": {**METADATA, "annotations": {runobjects.TERM: term}}}
    with contextlib.suppress(InvalidDocument, InvalidSettings):
        read_published(Object(raw))


@thorough
@given(text_of(b"2026-11-21T12:00:00Z uid 1795262400.000000001 3", b"0"))
def test_a_place_in_a_log_is_one_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidDocument):
        assert cursor.Cursor.read(text).since is not ""  # noqa: F632


@thorough
@given(inputs(b"2026-11-21T12:00:00.123456789Z line", b"2026-11-21T12:00:00+01:00 line"))
def test_any_line_of_a_log_is_told(line: bytes) -> None:
    stamp, text = cursor.split(line)
    assert stamp is None or len(stamp) == 2
    assert len(text) <= len(line)


@thorough
@given(words)
def test_any_words_of_kubernetes_are_told_in_few(said: str) -> None:
    assert len(str(diagnosis.cause(said))) < 1000
    with contextlib.suppress(ValueError):
        quantities.amount(said)


@thorough
@given(st.lists(words, min_size=6, max_size=6))
def test_any_pod_is_diagnosed(said: list[str]) -> None:
    """The API server checks what has a form; names of reasons, messages, labels and taints have none."""
    state: dict[str, Any] = {"waiting": {"reason": said[0], "message": said[1]}}
    ended = {"terminated": {"exitCode": 1, "reason": said[2], "message": said[3]}}
    status = {
        "phase": "Pending",
        "containerStatuses": [{"name": said[4], "state": state, "lastState": ended}],
        "conditions": [{"type": said[5], "reason": said[0], "message": said[1]}],
    }
    event = Event({"metadata": METADATA, "type": "Warning", "reason": said[2], "message": said[3]})
    pod = Pod({"metadata": METADATA, "status": status})
    warning = diagnosis.warning_of([event])
    for each in (
        pod,
        Pod({"metadata": METADATA, "status": {"phase": "Failed", "reason": said[0], "message": said[1]}}),
    ):
        diagnosis.cause(diagnosis.of_pod(each, warning))
    labels = dict.fromkeys(nodes.CAPACITY, said[0])
    node = Node({"metadata": {**METADATA, "labels": labels}, "spec": {"taints": [{"key": each} for each in said]}})
    assert nodes.capacity_type(node) is not None
    assert nodes.ending_taints(node) <= nodes.ENDING_TAINTS.keys()
