"""Background processes that outlive the program that starts them, and that are surely the ones it started."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cluster_kit.errors import ClusterError


class Daemons:
    """The daemons of a lab: a file each with process id and start time, so that no other process is ever signalled.

    Args:
        folder: for those files and the daemons' logs.
    """

    def __init__(self, folder: Path) -> None:
        self._pids = folder / "pid"
        self._logs = folder / "log"

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a daemon unless it runs. Its log is appended to."""
        if self.runs(name):
            return
        self._pids.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        # Not this process' environment: a proxy's address in it would be asked for pods and kubelets.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not subprocess.Popen, which is for children that are waited for. This keeps no repository's folder in use.
        pid = os.posix_spawnp(
            "env",
            ["env", "--chdir=/", *map(str, command)],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                # What this process was started with is not for a daemon to hold: a caller's lock, the end of a pipe.
                *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable_descriptors()),
            ],
            setsid=True,
        )
        (self._pids / name).write_text(json.dumps({"pid": pid, "started": _start_time(pid)}))

    def log(self, name: str) -> Path:
        """Where its output goes."""
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        """All that were started and not stopped, whether they still run or not."""
        return sorted(path.name for path in self._pids.glob("*"))

    def pid(self, name: str) -> int | None:
        """Of a running daemon."""
        with suppress(OSError, ValueError):
            record = json.loads((self._pids / name).read_text())
            if record["started"] is not None and _start_time(record["pid"]) == record["started"]:
                return int(record["pid"])
        return None

    def runs(self, name: str) -> bool:
        """Whether it is alive."""
        return self.pid(name) is not None

    def check(self, name: str) -> None:
        """Nothing, while it runs.

        Raises:
            ClusterError: it has ended; its last words are in the message.
        """
        if not self.runs(name):
            words = self.log(name).read_text(errors="replace")[-1500:] if self.log(name).exists() else ""
            raise ClusterError(f"{name} has ended; its log is {self.log(name)}\n{words}")

    def stop(self, name: str, *, grace: float) -> None:
        """End a daemon: SIGTERM, after ``grace`` seconds SIGKILL (at once when 0). Returns when it is gone."""
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            pid = self.pid(name)
            if pid is None or not seconds:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while self.runs(name) and time.monotonic() < deadline:
                time.sleep(0.02)
        (self._pids / name).unlink(missing_ok=True)


def _inheritable_descriptors() -> Iterator[int]:
    """Beside the standard three."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one that the list was read by
            if descriptor > 2 and os.get_inheritable(descriptor):
                yield descriptor


def _start_time(pid: int) -> str | None:
    """In clock ticks since the machine's start, which makes a process id unique; None for none and for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
