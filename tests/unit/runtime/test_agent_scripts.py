"""The files that came with a run, in a worker: where its ranks find them, and that they go with it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_runtime.agent import work_folder
from elastic_runtime.agent.agent import Agent, AgentSettings
from elastic_runtime.agent.scripts import Scripts
from elastic_runtime.agent.work_folder import WorkFolder
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument
from elastic_runtime.net import certificates
from elastic_runtime.protocol.rank_link import SCRIPTS
from elastic_runtime.protocol.wire import Output, RankExited, Ready, StartRank
from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import RunSpec, Shipment
from tests.unit.runtime.agent_bench import SOON, listening, spec

FILES = {
    "train.py": b"import lib.help\nlib.help.say()\n",
    "lib/help.py": b"import os, sys\ndef say(): print(os.getcwd())\n",
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


def lines_of(tls: Path, run: RunSpec, scratch: Path, environment: dict[str, str] | None = None) -> list[str]:
    """What a rank writes, which has ended with 0."""

    async def main() -> list[str]:
        async with listening(tls, run) as desk:
            agent = Agent(AgentSettings("worker-0", ("127.0.0.1", desk.port), tls, grace=0.05, scratch=scratch))
            task = asyncio.create_task(agent.run())
            try:
                await desk.until(lambda: bool(desk.of(Ready)))
                assert len([each for each in os.listdir(scratch) if each.startswith("scripts-")]) == 1
                desk.arrivals[0].send(StartRank("worker-0.0.0~0", 0, environment or {}))
                await desk.until(lambda: bool(desk.of(RankExited)))
                assert desk.of(RankExited)[0].code == 0, desk.messages
                return [line for output in desk.of(Output) for line in output.lines]
            finally:
                desk.arrivals[0].abort()
                async with asyncio.timeout(SOON):
                    await task

    lines = asyncio.run(main())
    assert list(scratch.iterdir()) == []
    return lines


def test_a_rank_starts_among_them_and_they_go_with_the_agent(tls: Path, tmp_path: Path) -> None:
    run = replace(spec("python", "train.py"), scripts=pack(FILES))
    (folder,) = lines_of(tls, run, tmp_path)
    assert Path(folder).parent == tmp_path


def test_a_directory_of_its_own_stays_and_the_script_is_found(tls: Path, tmp_path: Path) -> None:
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.mkdir()
    run = replace(spec("python", "./train.py"), scripts=pack(FILES), working_directory=str(other))
    assert lines_of(tls, run, scratch) == [str(other)]


def test_what_a_rank_starts_finds_them_and_the_path_that_there_was(tls: Path, tmp_path: Path) -> None:
    code = f"import os; print(os.environ['{SCRIPTS}'], os.environ['PYTHONPATH'])"
    run = replace(spec("python", "-c", code), scripts=pack(FILES), environment={"PYTHONPATH": "/one:/two"})
    (line,) = lines_of(tls, run, tmp_path)
    folder, path = line.split()
    assert path.split(":") == [folder, "/one", "/two"]


def test_an_agent_ends_when_they_are_not_what_can_be_shipped(tls: Path, tmp_path: Path) -> None:
    run = replace(spec("python", "train.py"), scripts=Shipment("0" * 64, 1, "AAAA"))

    async def main() -> None:
        async with listening(tls, run) as desk:
            await Agent(AgentSettings("worker-0", ("127.0.0.1", desk.port), tls, scratch=tmp_path)).run()

    with pytest.raises(InvalidDocument, match="shipped files"):
        asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_words_that_are_no_files_stay(tmp_path: Path) -> None:
    scripts = Scripts.lay_down(pack(FILES), tmp_path)
    command = ["python", "lib/../train.py", "--help", "lib", "train", "/train.py"]
    assert scripts.command(command) == ["python", str(scripts.folder / "lib/../train.py"), *command[2:]]


class TestWithoutRoomForTemporaryFiles:
    """Then the folder of the agent is in shared memory."""

    @pytest.fixture(autouse=True)
    def no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make = tempfile.mkdtemp

        def refused(prefix: str, dir: Path | None) -> str:  # noqa: A002  # as it is called
            if dir is None:
                raise FileNotFoundError(2, "No usable temporary directory found")
            return make(prefix=prefix, dir=dir)

        monkeypatch.setattr(tempfile, "mkdtemp", refused)

    def test_it_is_in_shared_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(work_folder, "SHARED_MEMORY", tmp_path)
        folder = WorkFolder()
        assert folder.path.parent == tmp_path
        Scripts.lay_down(pack(FILES), folder.path)
        folder.remove()
        assert list(tmp_path.iterdir()) == []

    def test_and_without_that_the_agent_says_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(work_folder, "SHARED_MEMORY", tmp_path / "none")
        with pytest.raises(ClusterUnavailable, match=r"No usable temporary directory.*TMPDIR"):
            WorkFolder()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ClusterUnavailable, match="No space left"):
        Scripts.lay_down(pack(FILES), tmp_path)
    assert list(tmp_path.iterdir()) == []
