"""A disk that is full, and a process without descriptors: the run goes on, and its end is told when that can be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_runtime import documents
from elastic_runtime.launcher.folder import platform as folder_platform
from elastic_runtime.launcher.local import platform
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.launcher.record.output import TAIL, OutputLog
from elastic_runtime.net import certificates
from elastic_runtime.retry import RetryPolicy
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
RUN = RunSpec("run", "uid", ("true",))
ERRORS = [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE, errno.EDQUOT, errno.EROFS]


def status(phase: Phase) -> Status:
    return Status("run", "uid", phase, "because", NOON)


class Disk:
    """Refuses to write while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.refused = 0
        self._write = documents.write_atomically
        monkeypatch.setattr("elastic_runtime.run.rundir.write_atomically", self.write)

    def write(self, path: Path, text: str, mode: int = 0o600) -> None:
        if self.error is not None:
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))
        self._write(path, text, mode)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(folder_platform, "_UNTIL_WRITTEN", RetryPolicy(0.01, 0.01))
    return Disk(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create(RUN, "owner")
    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def no_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class TestStatus:
    @pytest.mark.parametrize("error", ERRORS)
    def test_is_written_with_the_next_one(
        self, folder: RunDir, disk: Disk, error: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = LocalPlatform(folder, RUN)
        disk.error = error
        for _ in range(100):
            place.publish(status(Phase.RUNNING))
        assert folder.read_status() is None
        assert 0 < len(caplog.records) < 10
        disk.error = None
        place.publish(status(Phase.SUSPENDED))
        assert folder.read_status() == status(Phase.SUSPENDED)
        assert place.cancel() is None

    def test_on_a_disk_that_is_full_is_written_once_there_is_room(self, small_disk: Path) -> None:
        run = RunDir(small_disk / "run")
        run.create(RUN, "owner")
        place = LocalPlatform(run, RUN)
        rubbish = small_disk / "rubbish"
        with contextlib.suppress(OSError), rubbish.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        place.publish(status(Phase.RUNNING))
        place.ask_to_end("enough")
        assert run.read_status() is None
        assert place.cancel() == "enough"
        rubbish.unlink()
        place.publish(status(Phase.SUCCEEDED))
        assert run.read_status() == status(Phase.SUCCEEDED)

    def test_without_descriptors_is_written_once_there_are_some(self, folder: RunDir) -> None:
        place = LocalPlatform(folder, RUN)
        with no_descriptors():
            place.publish(status(Phase.RUNNING))
            assert place.watched() in (True, False)
            assert place.lease_age() is not None
        place.publish(status(Phase.RUNNING))
        assert folder.read_status() == status(Phase.RUNNING)

    def test_of_the_end_is_tried_until_it_is_written(self, folder: RunDir, disk: Disk) -> None:
        async def run() -> None:
            place = LocalPlatform(folder, RUN)
            disk.error = errno.ENOSPC
            place.publish(status(Phase.SUCCEEDED))
            flushing = asyncio.create_task(place.flush())
            while disk.refused < 4:  # noqa: ASYNC110 - a disk tells nobody
                await asyncio.sleep(0.005)
            disk.error = None
            await flushing
            assert folder.read_status() == status(Phase.SUCCEEDED)

        asyncio.run(run())

    def test_of_the_end_is_not_tried_for_ever(
        self, folder: RunDir, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(folder_platform, "FINAL_STATUS_TIMEOUT", 0.05)

        async def run() -> None:
            place = LocalPlatform(folder, RUN)
            disk.error = errno.ENOSPC
            place.publish(status(Phase.SUCCEEDED))
            async with asyncio.timeout(5):
                await place.flush()

        asyncio.run(run())
        assert "the final status could not be written" in caplog.records[-1].getMessage()

    def test_that_is_not_of_the_end_holds_nobody_up(self, folder: RunDir, disk: Disk) -> None:
        disk.error = errno.ENOSPC
        place = LocalPlatform(folder, RUN)
        place.publish(status(Phase.RUNNING))
        asyncio.run(place.flush())


def test_a_signal_ends_the_run_though_it_cannot_be_noted(folder: RunDir, disk: Disk) -> None:
    disk.error = errno.ENOSPC
    place = LocalPlatform(folder, RUN)
    place.ask_to_end("the launcher got SIGTERM")
    assert place.cancel() == "the launcher got SIGTERM"


def test_sizes_are_looked_after_again_when_the_folder_can_be_read(
    folder: RunDir, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    class Workers:
        def __init__(self, *_arguments: object) -> None:
            self.calls = 0

        def open(self, _address: str) -> None: ...

        def reconcile(self, _wanted: int) -> None:
            self.calls += 1
            if self.calls < 5:
                raise OSError(errno.EMFILE, "Too many open files")

        async def end_workers(self) -> None: ...

    monkeypatch.setattr(platform, "LocalWorkers", Workers)

    async def run() -> None:
        place = LocalPlatform(folder, RUN)
        place.open(1, lambda: None)
        async with asyncio.timeout(5):
            # A fake, which tells nobody.
            while place.workers.calls < 7:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await place.close()

    asyncio.run(run())


def test_keys_are_removed_without_a_descriptor(tmp_path: Path) -> None:
    certificates.create(tmp_path / "tls")
    with no_descriptors():
        certificates.remove(tmp_path / "tls")
        certificates.remove(tmp_path / "tls")  # harmless
    assert not (tmp_path / "tls").exists()


def test_half_made_keys_are_removed_too(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_runtime.launcher import __main__ as main

    def full(path: Path, *_more: object) -> None:
        path.mkdir()
        (path / "launcher.key").write_text("secret")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(certificates, "create", full)

    async def run() -> None:
        with pytest.raises(OSError, match="No space"):
            await main.run_in_folder(folder)

    asyncio.run(run())
    assert not folder.tls.exists()


class TestLog:
    def test_on_a_full_disk_costs_lines_and_nothing_else(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        with open("/dev/full", "w", encoding="utf-8") as full:
            log = OutputLog(full)
            for number in range(1000):
                log.write(NOON, "w", 0, "stderr", [f"line {number}" + "x" * 100])
            assert log.last_error().endswith("line 999" + "x" * 100)
            assert 0 < len(caplog.records) < 10
            log._stream = io.StringIO()  # There is room again.
            log.write(NOON, "w", 0, "stdout", ["here"])
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is buffered goes nowhere
        assert "1000 lines of output are lost" in caplog.records[-1].getMessage()

    def test_has_a_limit_and_then_the_newest_lines(self, caplog: pytest.LogCaptureFixture) -> None:
        stream = io.StringIO()
        log = OutputLog(stream, limit=10_000)
        for number in range(5000):
            log.write(NOON, "w", 0, "stdout", [f"line {number}" + "x" * 100])
        assert 10_000 <= len(stream.getvalue()) < 11_000
        assert [each.getMessage() for each in caplog.records if "log_limit" in each.getMessage()] != []
        before = stream.getvalue()
        log.end()
        log.end()
        assert stream.getvalue().startswith(before)  # Whoever follows it has not lost the place.
        newest = stream.getvalue().removeprefix(before).splitlines()
        assert len(newest) == TAIL
        assert newest[-1].endswith("line 4999" + "x" * 100)
        assert "lines of output were left out; the last 200 of them" in caplog.records[-1].getMessage()
