"""What a script may put into the folder of traces, and what an agent may say of them: nothing hangs, nothing leaks."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_runtime.agent.saving import Saving
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.protocol.plausible import check_agent
from elastic_runtime.protocol.wire import TracesSaved
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.tracing import traces
from elastic_runtime.tracing.timeline import Mark
from elastic_runtime.tracing.traces import merge_stored, piece_name

BEGIN = json.dumps({"time": 1_700_000_000_000_000, "size": 2})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def saving(tmp_path: Path, store: Path) -> Iterator[Saving]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = Saving(ObserveSpec(timeline=True, tensorboard=True), CheckpointSpec(store.as_uri()), scratch, {}, list)
    yield made
    asyncio.run(made.close())
    assert not made.folder.exists()


def saved(saving: Saving, store: Path) -> list[str]:
    asyncio.run(saving.save())
    return sorted(str(each.relative_to(store)) for each in store.rglob("*/*"))


def test_pipes_links_and_folders_are_passed_over_and_the_rest_is_saved(
    saving: Saving, store: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.mkfifo(saving.folder / "events.out.tfevents.1.pipe")
    (saving.folder / "events.out.tfevents.2.link").symlink_to(secret)
    (saving.folder / "0-a.pt.trace.json.gz").symlink_to(secret)
    (saving.folder / "timeline.a.0.0.1.json").write_text("[")
    os.mkfifo(saving.folder / "timeline.a.0.0.1.begin")
    (saving.folder / "events.out.tfevents.3.good").write_bytes(b"events")
    (saving.folder / "timeline.b.0.0.1.json").write_text("[")
    (saving.folder / "timeline.b.0.0.1.begin").write_text(BEGIN)
    good = ["tensorboard/events.out.tfevents.3.good", "traces/piece-1-1700000000000000-2-b.0.0.1.gz"]
    assert saved(saving, store) == good
    assert saved(saving, store) == good


@pytest.mark.parametrize(
    "begin",
    [
        "",
        "[]",
        "{}",
        '{"time": -5, "size": 1}',
        '{"time": 1e9, "size": 1}',
        '{"time": 1, "size": 99999999}',
        "x" * 9999,
    ],
)
def test_a_timeline_of_which_nothing_is_known_is_left_out(saving: Saving, store: Path, begin: str) -> None:
    (saving.folder / "timeline.a.0.0.1.json").write_text("[")
    (saving.folder / "timeline.a.0.0.1.begin").write_text(begin)
    assert saved(saving, store) == []
    assert list(saving.folder.iterdir()) == []


def test_names_are_made_plain_and_giants_are_cut(saving: Saving, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_runtime.agent.saving.LARGEST", 1000)
    host = "..\n$(x) ü.0.0"
    (saving.folder / f"timeline.{host}.1.json").write_bytes(b"x" * 5000)
    (saving.folder / f"timeline.{host}.1.begin").write_text(BEGIN)
    (name,) = saved(saving, store)
    assert name == "traces/piece-1-1700000000000000-2-..___x___.0.0.1.gz"
    assert gzip.decompress((store / name).read_bytes()) == b"x" * 1000


def test_a_bomb_and_a_torn_piece_do_not_keep_the_others_from_being_merged(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(traces, "LIMIT", 100_000)
    opened = open_store(store.as_uri())
    event = b'{"ph": "X", "name": "good", "ts": 1, "dur": 2, "pid": 1},\n'
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb") as packed:
        for _ in range(50):
            packed.write(b"{" * 1_000_000)
    for time, content in enumerate([bomb.getvalue(), gzip.compress(event * 50)[:-9], b"no gzip", gzip.compress(event)]):
        with opened.write_file(piece_name(1, 10 + time, 2, f"h{time}")) as stream:
            stream.write(content)
    with opened.write_file(piece_name(2, 5, 2, "of-another-try")) as stream:
        stream.write(gzip.compress(event))
    done = merge_stored(opened, 1, [Mark(0.0, "x" * 10_000)])
    assert done is not None
    with opened.open_beside("traces/timeline-1.json.gz", 1 << 20) as stream:
        events = json.loads(gzip.decompress(stream.read()))["traceEvents"]
    assert {each["name"] for each in events if each["ph"] == "X"} == {
        "good",
        *(f"world {n} of 2 ranks" for n in range(1, 5)),
    }
    assert max(len(each.get("name", "")) for each in events) <= 200
    assert "is not read to its end" in capfd.readouterr().err


@pytest.mark.parametrize(
    "files",
    [
        ("../secret",),
        ("traces/../x",),
        ("traces/timeline-1\n.json",),
        ("https://elsewhere/timeline",),
        ("tensorboard/x",),
        ("traces/profile-" + "x" * 500,),
        ("traces/profile-1",) * 101,
    ],
)
def test_an_agent_names_only_traces_of_its_run(files: tuple[str, ...]) -> None:
    with pytest.raises(InvalidDocument):
        check_agent(TracesSaved(files), "worker-0", 1)
