"""Stands in for ``python -m elastic_runtime.launcher RUN_DIR``: does what the file ``script`` beside the runs says."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from elastic_runtime.run.rundir import LauncherProcess, RunDir
from elastic_runtime.run.status import Phase, Status


def main(folder: RunDir, script: str) -> None:
    """One of the words that the tests use."""
    if script == "die before the lock":
        sys.exit("No module named 'elastic_runtime'")
    if script == "linger before the lock":
        wait_for(folder.path.parent / "go")
    with folder.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.write_launcher(LauncherProcess.of(os.getpid()))
        spec, now = folder.read_spec(), datetime.now(UTC)
        running = Status(spec.name, spec.uid, Phase.RUNNING, "all is well", now, world_size=1)
        (folder.path / "environment").write_text(json.dumps(dict(os.environ)))
        print("ready", os.getsid(0) == os.getpid(), flush=True)
        folder.write_status(running)  # Last: a test that has seen it reads the others.
        if script == "ignore the end":
            time.sleep(600)
        wait_for(folder.cancel, folder.path.parent / "finish")
        print("last line, without an end", end="", flush=True)
        folder.write_status(Status(spec.name, spec.uid, Phase.SUCCEEDED, "done", now, finished=now))


def wait_for(*files: Path) -> None:
    """Until one of them exists."""
    while not any(file.exists() for file in files):
        time.sleep(0.01)


if __name__ == "__main__":
    if "-c" in sys.argv:  # Asked what it has: everything.
        sys.exit(print(json.dumps(sys.argv[4:])))
    path = Path(sys.argv[-1])
    main(RunDir(path), (path.parent / "script").read_text())
