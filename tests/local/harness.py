"""Real runs with scripted events on this machine: the launcher as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import write_atomically
from elastic_runtime.errors import RunNotFound
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status
from tests.paced import Lost, ResizedRun, Script, until

WITHOUT_LAUNCHER = 60.0
"""Seconds after which nothing of a run is left whose launcher was killed, wherever its workers are."""


class ScriptedRun(ResizedRun):
    """One run, from its folder down to its last process.

    Args:
        base: an empty folder.
        script: what the ranks run.
        workers: minimum, start and maximum.
        slots: ranks of each worker.
        command: instead of the script's own.
        path: folders to import from besides, of every process of the run.
        spec: further fields of the RunSpec.
    """

    def __init__(
        self,
        base: Path,
        script: Script,
        workers: tuple[int, int, int] = (1, 2, 4),
        command: Sequence[str] | None = None,
        path: Sequence[Path] = (),
        slots: int = 1,
        **spec: Any,
    ) -> None:
        super().__init__(base, script)
        self.folder = RunDir(base / "run")
        minimum, start, maximum = workers
        self.spec = RunSpec(
            name="scripted",
            uid=base.name,
            command=tuple(command or script.command()),
            workers=WorkersSpec(minimum, start, maximum, slots),
            environment=self.environment(spec.pop("environment", {})),
            **spec,
        )
        self._path = [str(folder) for folder in (*path, os.environ.get("PYTHONPATH", "")) if str(folder)]
        self._launcher: subprocess.Popen[bytes] | None = None
        self._pause: dict[str, Any] = {}
        self._earlier_log = ""

    # Life

    def start(self) -> ScriptedRun:
        """Lay it down, and start its launcher as the local cluster does."""
        self.folder.create(self.spec, owner="test")
        self.launch()
        return self

    def launch(self) -> None:
        """Start the launcher of what is laid down."""
        with self.folder.log.open("ab") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "elastic_runtime.launcher", str(self.folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(self._path)},
                start_new_session=True,
            )

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        assert self._launcher is not None, "not started"
        return self._launcher

    def finish(self) -> Status:
        """End every hold, await the launcher's end, and return the final status."""
        self.go_on()
        return self.end()

    def succeed(self) -> Status:
        """As :meth:`finish`; fails with the log unless the run was a success."""
        status = self.finish()
        assert status.phase is Phase.SUCCEEDED, self.report("succeeded")
        return status

    def end(self, max_wait: float | None = None) -> Status:
        """Await the launcher's end; nothing may be left then."""
        self.until(self.is_over, "the launcher has ended", max_wait, alive=False)
        status = self.status()
        assert status.phase.final, self.report("the launcher has ended without a final status")
        assert self.launcher.returncode == (0 if status.phase is Phase.SUCCEEDED else 1), self.report("exit status")
        self.assert_nothing_left()
        return status

    def close(self) -> None:
        """Whatever has become of the test: leave nothing behind."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
        if self._launcher is not None:
            self._launcher.wait()
        for process in self.processes():
            process.kill()

    # Looking

    def look(self) -> Status | None:
        try:
            return self.folder.read_status()
        except RunNotFound:
            return None

    def written(self) -> object:
        """Another value whenever the status was written anew."""
        try:
            return (self.folder.path / "status.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def is_over(self) -> bool:
        return self.launcher.poll() is not None

    def agent_pid(self, worker: str) -> int:
        """Process id of that worker's agent, as soon as the status knows it."""
        status = self.until_status(lambda status: worker in {each.name for each in status.workers}, f"{worker} is here")
        return next(each.pids[0] for each in status.workers if each.name == worker)

    def log(self) -> str:
        return self._earlier_log + self.folder.log.read_text(encoding="utf-8")

    # Making things happen

    def resize(self, workers: int) -> None:
        self.folder.write_size(workers)

    def pause(self) -> None:
        """Ask for a pause, as Airflow's side notes it."""
        self._pause = {"name": "pause", "workers": self.folder.read_size(), "by": "ada", "pause": True}
        self._note(self._pause)

    def resume(self) -> None:
        """Ask for the end of the pause, at the size before it."""
        self._note(self._pause, {**self._pause, "name": "resume", "pause": False, "resume": True})

    def _note(self, *requests: Mapping[str, Any]) -> None:
        write_atomically(self.folder.path / "record.json", json.dumps({"requests": requests}))

    def kill_launcher(self) -> None:
        """By SIGKILL, and await that all of the run has ended with it."""
        module = "elastic_runtime.launcher"
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if module in process.cmdline():
                    process.kill()
        until(self.is_over, "the launcher is gone", WITHOUT_LAUNCHER)
        self.assert_no_process(WITHOUT_LAUNCHER)

    def lose_launcher(self) -> None:
        """Kill it, and start the one that the next try of the task would: with a new folder, and the next fence."""
        self.kill_launcher()
        self.lost.append(Lost(self.look(), self.stored(), time.monotonic()))
        self._earlier_log = self.log()
        shutil.rmtree(self.folder.path)
        self.spec = next_try(self.spec, f"{self.base.name}-{len(self.lost)}")
        self.start()

    def kill_rank(self, rank: int) -> None:
        self.kill_ranks(rank)

    def kill_ranks(self, *ranks: int) -> None:
        """All at once: none of them ends because of another before its own turn."""
        pids = [self.rank_pid(rank) for rank in ranks]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            with suppress(ProcessLookupError):  # Its agent ends it, if an engine needs all ranks.
                os.kill(pid, signal.SIGKILL)

    def reclaim(self, worker: str, seconds: float = 30.0, *, punctual: bool = False) -> None:
        """Give a worker its notice."""
        self.folder.write_notice(worker, ReclaimNotice("file", utc_now() + timedelta(seconds=seconds), punctual))

    # Afterwards

    def processes(self) -> list[psutil.Process]:
        """Every living process that belongs to this run, by its command line, its environment, or the status."""
        return [process for process in psutil.process_iter() if self.owns(process)]

    def owns(self, process: psutil.Process) -> bool:
        """Whether it lives and belongs to this run."""
        mark = os.fsencode(str(self.base))
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            places = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return any(mark in place for place in places)

    def assert_no_process(self, max_wait: float = 0.0) -> None:
        """No process is left, nor any socket of one."""
        until(lambda: not self.processes(), lambda: f"no process left, but {self.processes()}", max_wait)

    def assert_nothing_left(self) -> None:
        """No process, no key."""
        self.assert_no_process()
        assert not list(self.base.rglob("*.key")), "a private key is left"


def next_try(spec: RunSpec, uid: str) -> RunSpec:
    """What the next try of its task asks for: the same as another run, whose checkpoints come after the first's."""
    checkpoint = spec.checkpoint and replace(spec.checkpoint, fence=spec.checkpoint.fence + 1)
    return replace(spec, uid=uid, checkpoint=checkpoint)
