"""What is kept of runs lies where others may write, under names that users have chosen: neither is believed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.run.status import Phase, Status
from elastic_training import archive
from elastic_training.archive import Kept, document, keep, keeping, reading
from elastic_training.archive.document import MOST_TRIES
from elastic_training.clusters.fake import FakeCluster
from elastic_training.identity.ownership import Owner
from elastic_training.report import render_report
from tests.report_data import data_of
from tests.unit.provider.operator_bench import operator, trying

OWNER = Owner("nightly", "manual__2026", "train", -1, 1, "nonce", "here")
ENDED = Status("run", "uid", Phase.SUCCEEDED, "all ranks ended with code 0", utc_now(), finished=utc_now())


class Quiet:
    def info(self, message: str, /, *args: object) -> None: ...

    def warning(self, message: str, /, *args: object) -> None: ...


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the archive that is configured."""
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "here")
    monkeypatch.setattr(reading, "rendered_fields", lambda *_: [])
    return tmp_path / "archive"


def written(root: Path, owner: Owner = OWNER, status: Status = ENDED) -> Path:
    """The document of a try."""
    report = keep(root.as_uri(), None, owner, "local", status, None, Quiet())
    assert report is not None
    return Path(report.removeprefix("file://")).with_suffix(".json")


def kept(owner: Owner = OWNER, number: int | None = 1) -> Kept | None:
    return archive.read(owner.dag_id, owner.run_id, owner.task_id, owner.map_index, number)


HOSTILE = [
    "../../../../etc/passwd",
    "/absolute",
    "..",
    ".",
    "",
    "a\0b",
    "a\nb\x1b[2J",
    "x" * 5000,
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "a/b/c.t1.json",
    "-rf *",
    "%2e%2e%2f",
    "日本",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_ids_lead_nowhere_else_and_are_found_again(root: Path, tmp_path: Path, word: str) -> None:
    owner = replace(OWNER, dag_id=word, run_id=word, task_id=word)
    written(root, owner)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    assert {path.relative_to(root).parts[0] for path in root.rglob("*")} == {"here"}
    assert len([path for path in root.rglob("*") if path.is_file()]) == 2
    assert kept(owner) is not None
    assert kept() is None


def test_ids_that_read_alike_are_apart(root: Path) -> None:
    for word in ("a/b", "a-b", "a b", "a_b"):
        written(root, replace(OWNER, dag_id=word), replace(ENDED, reason=word))
    for word in ("a/b", "a-b", "a b", "a_b"):
        found = kept(replace(OWNER, dag_id=word))
        assert found is not None
        assert found.status.reason == word


def test_a_document_of_another_task_or_try_is_not_believed(root: Path) -> None:
    other = written(root, replace(OWNER, dag_id="secret", run_id="other", try_number=7))
    mine = written(root)
    shutil.copy(other, mine)
    assert kept() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b"null",
        b"{}",
        b"9" * 10_000,
        b" " * ((4 << 20) + 1),
    ],
)
def test_a_document_that_is_none_is_nothing(root: Path, content: bytes) -> None:
    written(root).write_bytes(content)
    assert kept() is None


def test_a_giant_a_pipe_and_a_link_are_not_opened(root: Path, tmp_path: Path) -> None:
    path = written(root)
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    assert kept() is None
    path.unlink()
    os.mkfifo(path)
    assert kept() is None
    path.unlink()
    shutil.copy(written(root, replace(OWNER, try_number=2)), tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert kept() is None


def test_a_folder_that_everybody_can_write_to_is_not_read(root: Path) -> None:
    written(root).parent.chmod(0o777)
    assert kept() is None


def _cost(**changes: Any) -> dict[str, Any]:
    cost = dict.fromkeys(("currency", "book", "cost", "idle_cost", "on_demand_cost", "saving"), "1.00")
    return {**cost, "saving_percent": None, "unpriced_seconds": 0.0, "lines": [], **changes}


@pytest.mark.parametrize(
    "cost",
    [
        _cost(cost="9" * 1000),
        _cost(cost=3),
        _cost(lines=[{}]),
        _cost(lines=[_cost()] * 1000),
        _cost(book={"$ref": "x"}),
        {"cost": "1"},
        "free",
    ],
)
def test_a_cost_that_no_bill_has_is_not_shown(root: Path, cost: Any) -> None:
    path = written(root)
    path.write_text(json.dumps({**json.loads(path.read_text()), "cost": cost}))
    assert kept() is None


def test_an_altered_page_is_not_served_and_words_of_a_status_are_text(root: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    path = written(root, OWNER, replace(ENDED, reason=hostile, run=hostile))
    path.with_suffix(".html").write_text("<script>steal()</script>")
    found = kept()
    assert found is not None
    page = found.report()
    assert "steal" not in page
    assert hostile not in page
    assert "<script>" not in page
    assert "<img" not in page
    assert data_of(page)["status"]["reason"] == hostile
    assert render_report(ENDED).count("<script") == page.count("<script")


def test_a_flood_of_tries_is_bounded(root: Path) -> None:
    path = written(root)
    start = path.name.removesuffix("1.json")
    for number in range(2, MOST_TRIES + 500):
        (path.parent / f"{start}{number}.json").touch()
    found = kept()
    assert found is None or len(found.tries) <= MOST_TRIES


def test_what_retires_touches_nothing_of_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE_KEEP", "1")
    path = written(root)
    strangers = ["notes.txt", "model.json", "x.t1.json.bak", "t1.json"]
    for name in strangers:
        (path.parent / name).write_text("mine")
    os.utime(path, (0, 0))
    os.utime(path.with_suffix(".html"), (0, 0))
    written(root, replace(OWNER, run_id="another"))
    assert not path.exists()
    assert all((path.parent / name).exists() for name in strangers)


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint_uri": "http://169.254.169.254/latest"},
        {"checkpoint_uri": "s3://user:secret@bucket/x"},
        {"checkpoint_uri": {"uri": "file:///etc"}},
        {"checkpoint_uri": "Truncated. You can change this behaviour in [core]max_templated_field_length. 'x'"},
        {"checkpoint_uri": "file:///etc", "checkpoint_conn_id": ["x"]},
        {"checkpoint_uri": None, "cluster": {"x": 1}},
        {"checkpoint_uri": None, "cluster": "../../x"},
        {},
    ],
)
def test_rendered_fields_that_no_task_of_ours_has_are_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.delenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE")
    monkeypatch.setattr(reading, "rendered_fields", lambda *_: [fields])
    assert kept() is None


def test_a_status_that_is_too_large_is_kept_without_its_curves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LARGEST", 1000)
    path = written(root)
    assert path.stat().st_size < 4000
    assert kept() is not None


def test_an_error_of_any_kind_fails_nothing(fake: FakeCluster, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(keeping, "keep", broken)
    fake.script(lambda: [fake.succeed(name) for name in fake.runs])
    assert operator().execute({"ti": trying()})["report"] is None
