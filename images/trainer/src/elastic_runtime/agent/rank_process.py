"""A forked child of a warm process, from its fork on: it becomes the rank and ends with the rank's exit status.

A command for this Python runs in the child itself. Any other command is executed in its place.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from dataclasses import dataclass
from typing import NoReturn

from elastic_runtime.agent import python_main
from elastic_runtime.agent.command import PythonCommand, cold, parse
from elastic_runtime.agent.python_end import end_like_python
from elastic_runtime.protocol.rank_link import SCRIPTS
from elastic_runtime.protocol.rank_sockets import RANK_FD, RANK_FD_INODE
from elastic_runtime.run.jobs import NOTICE_TO_ALL
from elastic_runtime.scheduling import stand_beside_ranks_no_more
from elastic_runtime.script.breakpoints import refuse_breakpoints
from elastic_runtime.script.stacks import dump_on_signal
from elastic_runtime.world import WORLD, current_world

CANNOT_START = 127
"""Exit code of a rank whose command cannot be started, as in a shell."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank that a forked child becomes."""

    command: list[str]
    environment: dict[str, str]
    directory: str | None
    descriptors: list[int]
    warm: bool


def _end_by_sigterm() -> None:
    """In children of a rank: multiprocessing ends its workers so."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def become(rank: Rank) -> NoReturn:
    """Turn this forked child into what was asked for, and end with its exit status."""
    stand_beside_ranks_no_more()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if NOTICE_TO_ALL in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # By which it ends; nohup, say, has had it ignored.
        os.register_at_fork(after_in_child=_end_by_sigterm)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    stdout, stderr, link = rank.descriptors
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.set_inheritable(link, True)
    own = {RANK_FD: str(link), RANK_FD_INODE: str(os.fstat(link).st_ino), "PYTHONUNBUFFERED": "1"}
    os.environ.update(rank.environment, **own)
    python = parse(rank.command)
    try:
        if rank.directory:
            os.chdir(rank.directory)
        if python is None or not rank.warm:
            command = cold(rank.command)
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"cannot start {rank.command[0]} in {rank.directory or '.'}: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)
    end_like_python(lambda: _run_warm(python), (__file__, python_main.__file__))


def _run_warm(python: PythonCommand) -> None:
    random.seed()  # A fork inherits the state; a process of its own would have one of its own.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # TextIOWrapper unless somebody replaced it
    if WORLD in os.environ:  # A rank; an agent has none.
        dump_on_signal()
        refuse_breakpoints()
        current_world().prepare()
    if scripts := os.environ.get(SCRIPTS):  # PYTHONPATH is for those that start anew.
        sys.path.insert(1, scripts)
    python_main.run_as_main(python)
