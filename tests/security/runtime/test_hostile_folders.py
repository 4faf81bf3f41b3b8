"""A run's script writes into its run's folder: its launcher is told all the same what users ask for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.documents import DEEPEST, parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.script import function

SPEC = RunSpec("run", "uid", ("true",), WorkersSpec(1, 1, 3))


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create(SPEC, "me")
    return made


class Watched(LocalPlatform):
    """Whose workers are nobody's."""

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self.workers = NoWorkers()  # type: ignore[assignment]
        super().open(port, on_change)


class NoWorkers:
    failing = False

    def open(self, address: str) -> None: ...

    def reconcile(self, wanted: int) -> None:
        if self.failing:
            raise KeyError("worker-0")

    async def end_workers(self) -> None: ...


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # it is a folder that is looked at
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["cancel", "stacks", "record.json", "size"])
@pytest.mark.parametrize("kind", [no_text, pipe, Path.mkdir], ids=lambda kind: kind.__name__)
def test_its_launcher_still_hears_of_the_end(folder: RunDir, name: str, kind: Callable[[Path], None]) -> None:
    async def go() -> None:
        platform = Watched(folder, SPEC)
        platform.open(1, lambda: None)
        path = folder.path / name
        path.unlink(missing_ok=True)
        kind(path)
        await asyncio.sleep(0.2)
        platform.requests()
        if name != "cancel":
            folder.ask_to_end("please")
        await until(lambda: platform.cancel() is not None)
        if name != "size":
            folder.write_size(2)
            await until(lambda: platform.asked() == 2)
        await platform.close()

    asyncio.run(go())


def test_an_error_does_not_end_its_watch(folder: RunDir) -> None:
    async def go() -> None:
        platform = Watched(folder, SPEC)
        platform.open(1, lambda: None)
        workers: Any = platform.workers
        workers.failing = True
        await asyncio.sleep(0.1)
        workers.failing = False
        folder.write_size(3)
        await until(lambda: platform.asked() == 3)
        await platform.close()

    asyncio.run(go())


@pytest.mark.parametrize("depth", [DEEPEST + 1, 400, 900, 100_000])
def test_a_document_that_nests_deeply_is_none(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(InvalidDocument):
            parse_json(text)


def test_levels_that_are_read() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize(("depth", "told"), [(50, 1), (200, 0), (800, 0), (20_000, 0)])
def test_a_result_that_nests_deeply_is_left_out(
    depth: int, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(function, "shared_link", lambda: type("Link", (), {"send": staticmethod(sent.append)}))
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    function._report_result(value)
    assert len(sent) == told
    assert ("left out" in caplog.text) is not bool(told)
