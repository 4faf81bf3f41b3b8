"""What a rank does when its process ends, and what its forks do not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.checkpoint.manifest import decode_manifest
from elastic_runtime.documents import to_json
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import CHECKPOINT, OUTPUTS
from elastic_runtime.protocol.rank_sockets import RANK_FD
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.world import WORLD

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 120.0
"""Seconds of a script."""
TRAINING = """
    import multiprocessing, os, sys, time
    import torch
    from elastic_runtime import outputs
    from elastic_runtime.torch import DurableState, report

    def begin():
        return DurableState(torch.nn.Linear(1, 1))

    def train(state=None):
        state = state or begin()
        for _ in range(3):
            state.step += 1
            state.commit()
            report(loss=float(state.step))
        (outputs() / "log.csv").write_text("of the rank")
"""


class Run:
    """A script as a rank's, with its agent and its store."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.store = folder, folder / "store"
        self._spec = CheckpointSpec(self.store.as_uri(), every=600.0)
        self.messages: list[dict[str, Any]] = []
        """To its agent."""

    def train(self, rest: str) -> str:
        """Run it to its end; returns its output."""
        ours, theirs = socket.socketpair()
        reader = threading.Thread(target=self._read, args=(ours,))
        reader.start()
        given = {
            CHECKPOINT: to_json(self._spec),
            OUTPUTS: str(self._folder / "outputs"),
            RANK_FD: str(theirs.fileno()),
            WORLD: "tests.unit.runtime.single_rank:WORLD",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with ours:
            with theirs:
                ended = run(self._folder, TRAINING + rest, pass_fds=[theirs.fileno()], env={**os.environ, **given})
            reader.join(LONGEST)
        return ended

    def _read(self, sock: socket.socket) -> None:
        lines = LineReader()
        while data := sock.recv(65536):
            self.messages += lines.feed(data)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["type"] == kind]

    @property
    def checkpoints(self) -> list[int]:
        """Their steps."""
        return [decode_manifest(each.read_bytes()).step for each in self.store.glob("*/manifest.json")]

    @property
    def outputs(self) -> list[str]:
        return sorted(each.name for each in self.store.glob("outputs-*/*"))


def run(folder: Path, source: str, **more: Any) -> str:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, str(script)]
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=LONGEST, **more
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture
def rank(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_what_a_rank_has_left_is_written(rank: Run) -> None:
    rank.train("    train()\n")
    assert (rank.checkpoints, rank.outputs) == ([3], ["log.csv"])
    assert [each["values"]["loss"] for each in rank.of_kind("metrics")] == [1.0, 2.0, 3.0]


def test_a_fork_that_ends_like_a_script_leaves_it_to_its_parent(rank: Run) -> None:
    """``sys.exit`` in a child of ``os.fork`` calls the hooks that it has inherited."""
    said = rank.train(f"""
    store = {str(rank.store)!r}

    def stored():
        return [(folder, names) for folder, _, names in os.walk(store)]

    train()
    before = stored()
    if (child := os.fork()) == 0:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    print(stored() == before)
    time.sleep(0.2)
    report(loss=4.0)
    """)
    assert said == "True\n"
    assert (rank.checkpoints, rank.outputs) == ([3], ["log.csv"])
    assert [each["values"]["loss"] for each in rank.of_kind("metrics")] == [1.0, 2.0, 3.0, 4.0]
    assert len(rank.of_kind("checkpoint_written")) == len(rank.of_kind("outputs_saved")) == 1


@pytest.mark.parametrize("inherits", [False, True])
def test_a_forked_child_of_multiprocessing_trains_in_its_parents_place(rank: Run, inherits: bool) -> None:
    """Such a child ends without Python's hooks."""
    rank.train(f"""
    state = None
    if {inherits}:
        state = begin()
        report(loss=0.0)
    child = multiprocessing.get_context("fork").Process(target=train, args=(state,))
    child.start()
    child.join()
    os._exit(child.exitcode)
    """)
    assert (rank.checkpoints, rank.outputs) == ([3], ["log.csv"])
    assert [each["values"]["loss"] for each in rank.of_kind("metrics")][-3:] == [1.0, 2.0, 3.0]
    assert len(rank.of_kind("checkpoint_written")) == 1


def test_a_forked_child_with_nothing_of_its_own_leaves_the_outputs_alone(rank: Run) -> None:
    rank.train("""
    train()

    def draw():
        (outputs() / "of-the-child.svg").write_text("of a child that draws")

    child = multiprocessing.get_context("fork").Process(target=draw)
    child.start()
    child.join()
    os._exit(child.exitcode)
    """)
    assert (rank.checkpoints, rank.outputs) == ([], [])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_each_kind_of_child_does_it_once_in_reverse_order(tmp_path: Path, method: str) -> None:
    said = run(
        tmp_path,
        f"""
    import multiprocessing
    from elastic_runtime.at_exit import AtExit

    def work():
        for name in ("first", "second", "forgotten"):
            (last := AtExit(lambda name=name: print(name, flush=True))).ask()
        last.ask()
        last.cancel()

    if __name__ == "__main__":
        AtExit(lambda: print("parent", flush=True)).ask()
        child = multiprocessing.get_context("{method}").Process(target=work)
        child.start()
        child.join()
    """,
    )
    assert said.split() == ["second", "first", "parent"]
