"""Documents that launcher, agents and ranks read: whatever they are given, nothing but what they say they raise."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.manifest import Manifest, Part, decode_manifest
from elastic_runtime.checkpoint.objects.register import Entries
from elastic_runtime.documents import from_json, to_json, to_plain
from elastic_runtime.errors import FailureKind, InvalidDocument, InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.net.framing import MAX_LINE, LineReader, LineSplitter
from elastic_runtime.protocol import rank_link, wire
from elastic_runtime.rehearsal import trace_files
from elastic_runtime.run.deadline import DeadlineSpec, DeadlineStatus
from elastic_runtime.run.headline import Headline, headline
from elastic_runtime.run.rundir import LauncherProcess, ReclaimNotice, RunDir
from elastic_runtime.run.runobjects import Term
from elastic_runtime.run.shipment import pack, unpack
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, Shipment
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
from elastic_runtime.run.status_figures import GpuFigures, Hardware
from elastic_runtime.run.status_progress import Pace, Progress
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training import tensor_files
from elastic_runtime.training.checkpointing import parts
from tests.security.fuzz.inputs import inputs, spoiled, thorough
from tests.security.runtime.hostile_checkpoints import signed

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.timeout(600)]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPEC = RunSpec(
    *("run", "uid", ("python", "train.py")),
    checkpoint=CheckpointSpec("file:///checkpoints/run"),
    deadline=DeadlineSpec(NOON, 2.0, 0.5),
)
GPU = GpuFigures(0, "GPU", 1.0, 1, 2)
STATUS = Status(
    run="run",
    uid="uid",
    phase=Phase.FAILED,
    reason="because",
    updated=NOON,
    finished=NOON,
    failure=FailureKind.RANK_FAILED,
    progress=Progress(9, 44.4, 5.0, 4.0, 6.0, "measured"),
    deadline=DeadlineStatus(NOON, 2.0, 1.0, "late", NOON),
    paces=(Pace(2, 4, 4.0),),
    metrics={"loss": 0.5},
    series={"loss": Series(1, (1,), (0.0,), (0.5,))},
    workers=(WorkerStatus("worker-0", "node", WorkerState.TRAINING, NOON, 1, (0,), (1,), 1.0, 1.0, 1, gpus=(GPU,)),),
    events=(Event(NOON, EventKind.STARTED, "message", "worker-0", 1, 1),),
    checkpoint=Checkpoint("file:///a", 1, NOON),
    history=(World(NOON, 1, 1, 1),),
    asked=(SizeAsked(NOON, 1),),
    worker_seconds={"worker-0": 1.0},
    hardware={"worker-0": Hardware((0.0, 1.0), {"cpu_percent": (None, 1.0)})},
    lost_seconds={"starting": 1.0},
)
MANIFEST = Manifest(1, NOON, 1, (Part("model.pt", 3, "ab"),))
WIRE: list[wire.Message] = [
    wire.Hello("worker-0", "node", 1, 1, "lo", token="a.b.c"), wire.Ready(True, "detail"),
    wire.RankStarted("worker-0.0.0", 1),
    wire.RankExited("worker-0.0.0", 0), wire.RankSaid("worker-0.0.0", {"type": "progress", "step": 1}),
    wire.Output("worker-0.0.0", "stdout", ("line",), NOON), wire.Heartbeat(1.0, 1), wire.ReclaimNotice("aws", NOON),
    wire.Welcome(SPEC, "worker-0"), wire.StartRank("worker-0.0.0", 0, {"A": "b"}), wire.StopRank("worker-0.0.0", 1.0),
    wire.Handover("worker-0", NOON), wire.CommitDeadline(NOON, "worker-0.0.0"), wire.Release("reason"),
    wire.TellRank("worker-0.0.0", {"type": "left_out"}), wire.Hosts((wire.Host("10.0.0.7", 2),)),
]  # fmt: skip
RANK: list[rank_link.RankMessage | rank_link.AgentWord] = [
    rank_link.Progress(1), rank_link.Metrics({"loss": 0.5}, 1), rank_link.Resumed("file:///a", 1),
    rank_link.CheckpointWritten("file:///a", 1, NOON, True, 1.0), rank_link.CheckpointSkipped("file:///a", "reason"),
    rank_link.CheckpointFailed(1, "reason"), rank_link.Handover("worker-0", NOON),
    rank_link.CommitDeadline(NOON, "worker-0.0.0"), rank_link.Returned('{"a": 1}'),
    rank_link.OutputsSaved(2, 30), rank_link.TotalSteps(9, True), rank_link.EngineWord({"type": "ready_for_world"}),
]  # fmt: skip
ATTRIBUTES = {"step": 1, "a": {"$tuple": [1, {"$float": "inf"}]}, "b": {"$items": [[{"$tuple": [1]}, None]]}}


def read_wire(data: bytes) -> None:
    for plain in LineReader().feed(data + b"\n"):
        wire.decode(plain)


def read_rank(data: bytes) -> None:
    for plain in LineReader().feed(data + b"\n"):
        rank_link.decode_rank_message(plain)
        rank_link._OF_AGENTS.read(plain)


def read_register(data: bytes) -> None:
    entries = from_json(Entries, data)
    entries.with_name("ckpt-f1-s1-t1-aa").without("x")
    with contextlib.suppress(OwnershipLost):
        entries.claimed(1, "run", "s3://a/b")


def as_kind(kind: type) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        # What was read can be written again: nothing that breaks later has slipped in.
        return to_json(from_json(kind, data)).encode()

    return read


TRACE = b"0,add,a\n0,price,0.5\n9000,remove,a\n"
COUNTS = {"metadata": {"gap_seconds": 300}, "data": [2, 1], "prices": [0.5, 0.25]}


def tensor_file() -> bytes:
    stream = io.BytesIO()
    tree = {"weight": torch.arange(4.0), "plain": [1, (2.0, "x"), {True}], "raw": b"\xff", "type": torch.float32}
    tensor_files.write(TORCH, tree, stream)  # type: ignore[arg-type]
    return stream.getvalue()


PARSERS: dict[str, tuple[Callable[[bytes], object], list[object]]] = {
    "wire": (read_wire, [wire.encode(each) for each in WIRE] + [json.loads(wire.encode(each)) for each in WIRE]),
    "rank link": (read_rank, [json.loads(rank_link.encode_rank_message(each)) for each in RANK]),
    "spec": (as_kind(RunSpec), [to_plain(SPEC)]),
    "shipment": (lambda data: unpack(from_json(Shipment, data)), [to_plain(pack({"train.py": b"", "lib/a": b"\xff"}))]),
    "checkpoint spec": (as_kind(CheckpointSpec), [to_plain(SPEC.checkpoint)]),
    "status": (as_kind(Status), [to_plain(STATUS)]),
    "headline": (as_kind(Headline), [to_plain(headline(STATUS))]),
    "notice": (as_kind(ReclaimNotice), [to_plain(ReclaimNotice("file", NOON))]),
    "launcher": (as_kind(LauncherProcess), [to_plain(LauncherProcess(1, 2.0))]),
    "term": (as_kind(Term), [to_plain(Term(1, "uid", 1, NOON))]),
    "register": (read_register, [to_plain(Entries(1, ("ckpt-f1-s1-t1-aa",)))]),
    "manifest": (lambda data: decode_manifest(signed(data)), [to_plain(MANIFEST)]),
    "manifest with its sum": (decode_manifest, [signed(to_json(MANIFEST).encode())]),
    "attributes": (parts._read_attributes, [ATTRIBUTES]),
    "trace": (lambda data: trace_files.parse_trace("t", data.decode(errors="replace")), [TRACE]),
    "trace of counts": (lambda data: trace_files.parse_counts("t", data.decode(errors="replace")), [COUNTS]),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_document_is_read_or_refused(name: str) -> None:
    read, documents = PARSERS[name]

    @thorough
    @given(inputs(*documents))
    def holds(data: bytes) -> None:
        with contextlib.suppress(InvalidDocument, InvalidSettings):
            read(data)

    holds()


WHOLE = tensor_file()


@thorough
@given(spoiled([WHOLE]))
def test_a_file_of_tensors_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidDocument):
        tensor_files.read(TORCH, io.BytesIO(data), len(data))


@thorough
@given(spoiled([WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "little")]]))
def test_its_header_is_followed_or_refused(header: bytes) -> None:
    with contextlib.suppress(InvalidDocument):
        tensor_files.from_outline(TORCH, header)


@thorough
@given(pieces=st.lists(st.binary(max_size=30) | st.just(b"\n"), max_size=8), longest=st.integers(1, 20))
def test_lines_are_what_came_in_parts_that_are_not_too_long(pieces: list[bytes], longest: int) -> None:
    splitter = LineSplitter(longest)
    found = [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()
    assert all(len(line) <= longest for line in found)
    assert b"".join(found) == b"".join(pieces).replace(b"\n", b"")


@thorough
@given(inputs(to_plain(STATUS), b"3", b"owner", b"1" * 5000))
def test_a_run_s_folder_is_read_or_refused(folder: Path, data: bytes) -> None:
    run = RunDir(folder)
    for name in ("spec.json", "owner", "size", "status.json", "headline.json", "launcher.json"):
        (folder / name).write_bytes(data)
    for read in (run.read_spec, run.read_owner, run.read_size, run.read_status, run.read_headline, run.read_launcher):
        with contextlib.suppress(InvalidDocument, InvalidSettings, RunNotFound):
            read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all inputs."""
    return tmp_path_factory.mktemp("run")


@thorough
@given(inputs(signed(to_json(MANIFEST).encode()), b"1", b"9" * 30))
def test_a_store_is_read_or_passed_over(store: Path, data: bytes) -> None:
    here = store / "ckpt-f1-s1-t1-aa"
    for file in (store / ".fence", here / "manifest.json", here / "model.pt"):
        file.write_bytes(data)
    checkpoints = Checkpoints(FileStore(store.as_uri()), fence=1, keep=1)
    with contextlib.suppress(OwnershipLost):
        checkpoints.claim()
    checkpoints.newest(partial(parts.read_parts, TORCH), lambda uri, reason: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all inputs."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "ckpt-f1-s1-t1-aa").mkdir()
    return folder


def test_a_line_that_does_not_end_is_refused() -> None:
    with pytest.raises(InvalidDocument):
        list(LineReader().feed(b"x" * (MAX_LINE + 1)))
