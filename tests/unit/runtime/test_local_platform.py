"""The launcher's platform on this machine, without its workers: when it has how many of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from elastic_runtime.documents import write_atomically
from elastic_runtime.launcher.local import platform as local
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from tests.unit.runtime.agent_bench import SOON

RUN = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3))


class Workers:
    """Notes how many are wanted."""

    def __init__(self, _folder: RunDir, _spec: RunSpec) -> None:
        self.wanted: list[int] = []
        self.looked = asyncio.Event()

    def open(self, address: str) -> None:
        """Nothing to start."""

    def reconcile(self, wanted: int) -> None:
        self.wanted.append(wanted)
        self.looked.set()

    async def end_workers(self) -> None:
        """Nothing to end."""

    async def until(self, wanted: int) -> None:
        async with asyncio.timeout(SOON):
            while not self.wanted or self.wanted[-1] != wanted:
                self.looked.clear()
                await self.looked.wait()


def test_a_run_that_is_paused_has_no_worker_until_another_size_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(local, "LocalWorkers", Workers)
        folder = RunDir(tmp_path / "run")
        folder.create(RUN, "me")
        folder.write_size(0)
        requests = [{"name": "p", "workers": 2, "pause": True}]
        write_atomically(folder.path / "record.json", json.dumps({"requests": requests}))
        platform, changed = LocalPlatform(folder, RUN), asyncio.Event()
        platform.open(1, changed.set)
        assert (platform.asked(), json.loads(platform.requests() or "[]")) == (0, requests), "before the first worker"
        platform.ask(0)
        workers = platform.workers
        assert isinstance(workers, Workers)
        await workers.until(0)
        changed.clear()
        write_atomically(folder.path / "record.json", json.dumps({"requests": [*requests, {"name": "r"}]}))
        async with asyncio.timeout(SOON):
            await changed.wait()
        assert len(json.loads(platform.requests() or "[]")) == 2
        assert set(workers.wanted) == {0}
        folder.write_size(3)
        await workers.until(3)
        await platform.close()

    asyncio.run(test())
