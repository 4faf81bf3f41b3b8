"""A compromised worker that speaks for others, or says numbers and names that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.agents import MAX_INVALID_MESSAGES
from elastic_runtime.launcher.kubernetes.leadership import STATUS_ROOM, fitted
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.net import certificates
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.plausible import METRICS, check_agent, check_hello, check_rank
from elastic_runtime.protocol.rank_link import (
    MAX_RETURNED,
    CheckpointFailed,
    CheckpointWritten,
    Metrics,
    Progress,
    TotalSteps,
    decode_rank_message,
)
from elastic_runtime.protocol.wire import (
    AgentMessage,
    Heartbeat,
    Hello,
    Output,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    decode,
    encode,
)
from elastic_runtime.run import status_progress
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.run.status import MAX_METRICS, Event, EventKind, Phase, Status, WorkerState, WorkerStatus
from elastic_runtime.run.status_figures import GpuFigures
from elastic_runtime.run.status_progress import MAX_BASIS, MAX_PACES, Pace
from tests.unit.runtime.agent_bench import SOON
from tests.unit.runtime.launcher_bench import Place, Worker, launched

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
Test = Callable[[Place, Worker, asyncio.Task[Status]], Awaitable[None]]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


@pytest.mark.parametrize(
    "hello",
    [
        Hello("", "node", 1, 1, "lo"),
        Hello("w" * 64, "node", 1, 1, "lo"),
        Hello("worker\nlauncher: succeeded", "node", 1, 1, "lo"),
        Hello("worker-0.r1", "node", 1, 1, "lo"),
        Hello("(earlier)", "node", 1, 1, "lo"),
        Hello("w", "n" * 300, 1, 1, "lo"),
        Hello("w", "node\x1b[2J", 1, 1, "lo"),
        Hello("w", "node", 0, 1, "lo"),
        Hello("w", "node", 2**40, 1, "lo"),
        Hello("w", "node", 1, 2_000_000, "lo"),
        Hello("w", "node", 1, 0, "lo"),
        Hello("w", "node", 1, 1, "../../etc/x"),
        Hello("w", "node", 1, 1, "a-name-that-is-too-long"),
        Hello("w", "node", 1, 1, "lo", "10.0.0.7 slots=99\nevil.example"),
        Hello("w", "node", 1, 1, "lo", "fe80::1%a\nevil.example"),
        Hello("w", "node", 1, 1, "lo", "evil.example"),
    ],
)
def test_a_hello_that_no_agent_says_is_refused(hello: Hello) -> None:
    check_hello(Hello("run-worker-x7k2p", "node_1.example", 77, 1, "eth0"), 1)
    check_hello(Hello("run-worker-x7k2p", "node_1.example", 77, 1, "eth0", "10.0.0.7"), 1)
    with pytest.raises(InvalidDocument) as refused:
        check_hello(hello, 1)
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "message",
    [
        Hello("w", "node", 1, 1, "lo"),
        RankStarted("w.0.0~0", -1),
        RankStarted("v.0.0~0", 7),
        RankExited("v.0.0~0", 0),
        RankExited("w.1.0~0", 0),
        RankExited("w.r1.0.0~0", 0),
        RankExited("w.0.0~0", 10**30),
        RankExited("w.0." + "9" * 5000, 0),
        RankExited("w.0.٣~0", 0),
        RankExited("", 0),
        RankSaid("v.0.0~0", {}),
        Output("v.0.0~0", "stdout", ("forged",), NOON),
        Output("w.0.0~0", "launcher", ("forged",), NOON),
        Output("w.0.0~0", "stdout", ("",) * 3000, NOON),
        Heartbeat(-1.0, 0),
        Heartbeat(1e300, 0),
        Heartbeat(0.0, 10**400),
        Heartbeat(0.0, 0, -1.0),
        Heartbeat(0.0, 0, None, 1e300),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "x"),) * 65),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "x" * 64),)),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "\x1b[2J"),)),
        Heartbeat(0.0, 0, gpus=(GpuFigures(-1, "x"),)),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "x", 101.0),)),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "x", None, -1),)),
        Heartbeat(0.0, 0, gpus=(GpuFigures(0, "x", None, None, 10**30),)),
        ReclaimNotice("x" * 1000, NOON),
    ],
)
def test_what_that_worker_cannot_say_is_refused(message: AgentMessage) -> None:
    with pytest.raises(InvalidDocument) as refused:
        check_agent(message, "w", 1)
    assert len(str(refused.value)) < 200


def raw(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


NONSENSE = [
    b'{"type":"heartbeat","cpu_percent":NaN,"memory_bytes":1}\n',
    b'{"type":"heartbeat","cpu_percent":1e999,"memory_bytes":1}\n',
    b'{"type":"heartbeat","cpu_percent":' + b"9" * 5000 + b',"memory_bytes":1}\n',
    b'{"type":"heartbeat","cpu_percent":1' + b"0" * 400 + b',"memory_bytes":1}\n',
    b"[" * 100_000 + b"\n",
    b'{"type":"rank_said","rank_id":"w.0.0~0","message":' + b'{"a":' * 50_000 + b"\n",
    raw(type="reclaim_notice", source="x", deadline="9999-12-31T23:59:59-12:00"),
    raw(type="reclaim_notice", source="x", deadline="0001-01-01T00:00:00+14:00"),
    raw(type="reclaim_notice", source="x", deadline=7),
    raw(type="rank_exited", rank_id=["w"], code=0),
    raw(type=["hello"]),
]


@pytest.mark.parametrize("line", NONSENSE)
def test_nonsense_costs_its_author_the_connection_and_the_run_nothing(tls: Path, line: bytes) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        worker.writer.write(line)
        await place.until(lambda status: any(event.kind is EventKind.LOST for event in status.events))
        assert not running.done()

    launched(tls, test)


def test_a_rank_that_another_worker_says_has_ended_runs_on(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        liar = await Worker.dial(tls, place.port, "liar")
        try:
            await place.until(lambda status: "liar" in {each.name for each in status.workers})
            for _ in range(MAX_INVALID_MESSAGES):
                liar.writer.write(encode(RankExited("w.0.0~0", 0)))
            await place.until(
                lambda status: [each.worker for each in status.events if each.kind is EventKind.LOST] == ["liar"]
            )
            worker.writer.write(encode(Ready(warm=False)))
            await place.until(
                lambda status: (
                    {each.state for each in status.workers if each.name == "w"}
                    & {WorkerState.READY, WorkerState.TRAINING}
                    != set()
                )
            )
            assert not running.done()
        finally:
            liar.writer.transport.abort()

    launched(tls, test)


def test_a_rank_that_was_never_started_has_not_ended(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        for number in range(MAX_INVALID_MESSAGES):
            worker.writer.write(encode(RankStarted(f"w.0.{number}~0", 99)))
        await place.until(lambda status: any(event.kind is EventKind.LOST for event in status.events))
        assert not any(99 in each.pids for status in place.published for each in status.workers)

    launched(tls, test)


def test_a_worker_that_its_place_does_not_know_is_turned_away(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.known = {"w"}
        liar = await Worker.dial(tls, place.port, "liar")
        async with asyncio.timeout(SOON):
            with contextlib.suppress(OSError):
                assert await liar.hear() is None
        liar.writer.transport.abort()
        assert {each.name for each in place.published[-1].workers} == {"w"}

    launched(tls, test)


def test_a_deadline_at_the_end_of_time_is_no_error(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        worker.writer.write(raw(type="reclaim_notice", source="::group::\nx", deadline="2200-12-31T23:59:59Z"))
        status = await place.until(lambda status: any(event.kind is EventKind.NOTICE for event in status.events))
        [notice] = [event.message for event in status.events if event.kind is EventKind.NOTICE]
        assert notice.endswith("(:\\x3agroup::\\x0ax)")
        assert not running.done()

    launched(tls, test)


def test_words_about_checkpoints_do_not_fill_the_log(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        word = {"type": "checkpoint_failed", "step": 1, "reason": "no"}
        for _ in range(200):
            worker.writer.write(encode(RankSaid("w.0.0~0", word)))
        await place.until(lambda status: any(event.kind is EventKind.LOST for event in status.events))
        assert sum(event.kind is EventKind.CHECKPOINT for event in place.published[-1].events) < 80

    launched(tls, test)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "file:///c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "uri",
    "step",
    "time",
    "handover",
    "seconds",
    "reason",
    "values",
    "rank_id",
    "worker",
    "deadline",
    "code",
    "steps",
    "by_script",
)
KINDS = (
    *("progress", "metrics", "checkpoint_written", "checkpoint_failed", "checkpoint_skipped", "resumed", "rank_exited"),
    "total_steps",
)
words = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(KINDS) | values,
    st.dictionaries(st.sampled_from(FIELDS), values),
)


@given(word=words)
def test_whatever_is_said_is_refused_as_one_error_or_can_be_told(word: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidDocument):
        decode(word)
    record = RunRecord(RunSpec("run", "uid", ("true",)), lambda: NOON)
    for _ in range(2):
        try:
            message = decode_rank_message(word)
            if message:
                check_rank(message)
                record.rank_said(message, "w")
        except InvalidDocument:
            pass
    status = record.status([], {}, 1)
    assert from_json(Status, to_json(status)) == status
    assert all(len(event.message.splitlines()) <= 1 for event in status.events)


@given(line=st.binary(max_size=60) | st.text(alphabet='{}[]":,0e9.NaInfty-\\u', max_size=60).map(str.encode))
def test_whatever_is_no_object_is_refused_as_one_error(line: bytes) -> None:
    with contextlib.suppress(InvalidDocument):
        decode_line(line)


def test_values_of_a_training_that_diverges_are_refused_on_the_wire() -> None:
    with pytest.raises(InvalidDocument):
        decode_rank_message({"type": "metrics", "values": {"loss": float("nan")}})
    with pytest.raises(InvalidDocument, match="metrics at once"):
        check_rank(Metrics({str(number): 1.0 for number in range(METRICS + 1)}))
    with pytest.raises(InvalidDocument, match="step: a number is out of range"):
        check_rank(Progress(10**5000))
    check_rank(CheckpointFailed(1, "x" * 10_000))
    for steps in (0, -1, 10**400):
        with pytest.raises(InvalidDocument, match="steps: "):
            check_rank(TotalSteps(steps, by_script=True))


def test_a_checkpoint_that_is_not_in_the_store_of_the_run_is_not_named() -> None:
    """Tasks that follow would load it."""
    store = CheckpointSpec("s3://bucket/run/")
    record = RunRecord(RunSpec("run", "uid", ("true",), checkpoint=store), lambda: NOON)
    for uri in ("s3://bucket/run2/ckpt-1", "s3://bucket/run/../ckpt-1", "file:///tmp/ckpt-1", "s3://bucket/run"):
        with pytest.raises(InvalidDocument, match="not in the checkpoint store"):
            record.rank_said(CheckpointWritten(uri, 1, NOON, False, 1.0), "w")
    assert record.checkpoint is None
    record.rank_said(CheckpointWritten("s3://bucket/run/ckpt-1", 1, NOON, False, 1.0), "w")
    assert record.checkpoint is not None


def test_names_of_metrics_are_few_short_and_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    record = RunRecord(RunSpec("run", "uid", ("true",)), lambda: NOON)
    for number in range(3 * MAX_METRICS):
        record.rank_said(Metrics({f"{number}\n\x1b[2J" + "x" * 1000: 1.0}, number), "w")
    status = record.status([], {}, 1)
    assert len(status.metrics) == len(status.series) == MAX_METRICS
    assert all(len(name) <= 100 and name.isprintable() for name in status.metrics)
    assert len([each for each in caplog.records if "metrics are reported" in each.getMessage()]) == 1


def test_the_largest_status_fits_a_config_map() -> None:
    long = "\U0001f600" * 400  # each of them twelve bytes of JSON
    workers = tuple(
        WorkerStatus("w" * 63 + f".r{number}", "n" * 253, WorkerState.TRAINING, NOON, 8, tuple(range(8)), (2**31,) * 9)
        for number in range(2002)
    )
    status = Status(
        run="run",
        uid="uid",
        phase=Phase.RUNNING,
        reason=long * 10,
        updated=NOON,
        events=(Event(NOON, EventKind.LOST, long, "w" * 63),) * 200,
        progress=status_progress.Progress(2**53, 33.33, 1e8 / 3, 1e8 / 3, 1e8 / 3, "\U0001f600" * MAX_BASIS),
        paces=(Pace(2000, 2**53, 1e8 / 3),) * MAX_PACES,
        metrics={f"{number}{long[:97]}": 1e-300 for number in range(MAX_METRICS)},
        workers=workers,
        worker_seconds={worker.name: 1e9 for worker in workers},
        returned="\\" * MAX_RETURNED,
    )
    assert len(to_json(status)) > 2 * STATUS_ROOM
    text = fitted(status)
    assert len(text) <= STATUS_ROOM
    shown = from_json(Status, text)
    assert (shown.phase, shown.reason, shown.returned) == (status.phase, status.reason, status.returned)
    small = Status("run", "uid", Phase.RUNNING, "well", NOON)
    assert fitted(small) == to_json(small)


def test_output_cannot_write_lines_of_its_own() -> None:
    stream = io.StringIO()
    OutputLog(stream).write(NOON, "w", 0, "stdout", ["a\n2026 launcher: finished", "::endgroup::\x1b[2K", "b\u2028c"])
    assert len(stream.getvalue().splitlines()) == 3
    assert "::endgroup::" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
