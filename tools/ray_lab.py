"""A Ray cluster on this machine: ``tools/ray with -- COMMAND`` runs a command that finds it by RAY_LAB.

One head without CPUs and :data:`NODES` nodes of .venv-ray, in a folder that is removed in the end. Each node has four
CPUs, and four of a resource ``spot``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from lab_kit import UNAVAILABLE, exit_at_sigterm, free_ports, until

ROOT = Path(__file__).resolve().parents[1]
RAY = ROOT / ".venv-ray" / "bin"
NODES = 3
CPUS = 4
_STORE = 100_000_000
"""Bytes of a node's object store, which runs do not use."""
_PATIENT = {"RAY_raylet_start_wait_time_s": "60", "RAY_worker_register_timeout_seconds": "240"}
"""Seconds that Ray has to start a node and a process. With its own 60 s for the latter, a machine with other work on
few cores starts it again and again, and no job ever runs."""
_TRIES = 5
"""To start a node."""


def main(arguments: list[str]) -> int:
    """Return the command's exit status, or :data:`UNAVAILABLE`."""
    if arguments[:2] != ["with", "--"] or len(arguments) < 3:
        sys.exit("usage: ray with -- COMMAND...")
    if not (RAY / "ray").exists():
        print("LEFT OUT: no .venv-ray here: make setup-ray", file=sys.stderr)
        return UNAVAILABLE
    exit_at_sigterm()
    with lab() as found:
        return subprocess.run(arguments[2:], check=False, env={**os.environ, **found}).returncode


@contextmanager
def lab() -> Iterator[dict[str, str]]:
    """Start it. Yields the variables by which it is found; nothing of it is left afterwards."""
    with ExitStack() as stack:
        # Short, as paths of sockets are in it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)))
        port, dashboard, *_ = free_ports(50)
        gcs = f"127.0.0.1:{port}"
        shared = [f"--temp-dir={folder}", f"--object-store-memory={_STORE}", "--disable-usage-stats"]
        head = ["--head", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=0", *shared]
        found = {"RAY_LAB": f"127.0.0.1:{dashboard}", "RAY_LAB_GCS": gcs, "RAY_LAB_PYTHON": str(RAY / "python")}
        _start(stack, head, folder, found)
        stack.enter_context(_nodes(found, folder))
        yield found


@contextmanager
def _nodes(found: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Have :data:`NODES` nodes. Another is started in the place of one that was drained, as an autoscaler does."""
    over = threading.Event()
    with ExitStack() as stack:

        def replace() -> None:
            while not over.wait(5.0):
                if 0 < len(alive(found["RAY_LAB"])) <= NODES:  # 0: Ray does not answer.
                    with suppress(RuntimeError):  # Tried again, for as long as a test waits for it.
                        _start(stack, _node_options(found), folder, found, over)

        for _ in range(NODES):  # One by one: all at once do not start in the time that Ray gives them.
            _start(stack, _node_options(found), folder, found)
        thread = threading.Thread(target=replace)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _start(
    stack: ExitStack, options: list[str], folder: Path, found: Mapping[str, str], over: threading.Event | None = None
) -> None:
    """Start one more node, and wait until Ray tells of it, or it is over. On a busy machine Ray gives up some."""
    before = len(alive(found["RAY_LAB"]))

    def there() -> bool:
        return len(alive(found["RAY_LAB"])) > before or (over is not None and over.is_set())

    for _ in range(_TRIES):
        node = stack.enter_context(_started(options, folder, found))
        until(lambda node=node: there() or node.poll() is not None, "another node is there", folder)  # type: ignore[misc]
        if node.poll() is None:
            return
    raise RuntimeError(f"no node starts here: {(folder / 'nodes.log').read_text(errors='replace')[-2000:]}")


def _node_options(found: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``ray start`` for another node."""
    shared = [f"--object-store-memory={_STORE}", "--disable-usage-stats"]
    resources = json.dumps({"spot": CPUS})
    return [f"--address={found['RAY_LAB_GCS']}", f"--num-cpus={CPUS}", f"--resources={resources}", *shared]


@contextmanager
def _started(options: list[str], folder: Path, found: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a node that lasts as long as the block, with whatever runs on it, all of it marked by ``RAY_LAB``."""
    environment = {**os.environ, **found, **_PATIENT, "PATH": f"{RAY}:{os.environ['PATH']}"}
    with (folder / "nodes.log").open("ab") as log:
        command = [str(RAY / "ray"), "start", "--block", *options]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node as a machine that is switched off: all that runs there at once."""
    if process.poll() is not None:  # Its number may be another's by now.
        return
    for pid in (process.pid, *_children(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _children(pid: int) -> list[int]:
    """All below it, as the kernel knows them."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found += [child, *_children(child)]
    return found


def alive(address: str) -> list[dict[str, object]]:
    """Return the nodes that Ray's API tells of as alive; none while it does not answer."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with urlopen(f"http://{address}/api/v0/nodes?detail=1", timeout=20) as answer:
            told = json.load(answer)["data"]["result"]["result"]
        return [node for node in told if node["state"] == "ALIVE"]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
