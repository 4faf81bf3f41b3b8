"""What an agent or a rank of a run can have to say; whatever is beyond comes from none of ours.

Types are the codec's to check (:mod:`elastic_runtime.documents`). Here is what a type leaves open, so that one worker
cannot speak for another, and no number or name of it can end the launcher or fill the status.
"""

from __future__ import annotations

import math
import re

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.rank_link import (
    CheckpointFailed,
    CheckpointSkipped,
    CheckpointWritten,
    Metrics,
    Progress,
    RankMessage,
    Resumed,
)
from elastic_runtime.rank_names import RankName
from elastic_runtime.wire import AgentMessage, Heartbeat, Hello, Noticed, Output, RankExited, RankSaid, RankStarted

COUNT = 2**53
"""Steps, bytes: whole numbers that every reader of JSON keeps."""
SECONDS = 10.0**9
PID = 2**31 - 1
CPU = 10.0**7
"""Percent of one core: a hundred thousand cores."""
RANK_ID = 128
"""Characters of a rank's name."""
URI = 2048
"""Characters of a checkpoint's."""
METRICS = 1000
"""In one message; the status keeps fewer."""
LINES = 2000
"""Of output, in one message."""
STREAMS = ("stdout", "stderr")
_WORKER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NODE = re.compile(r"[-._A-Za-z0-9]{1,253}")
_INTERFACE = re.compile(r"[-.:@_A-Za-z0-9]{1,15}")


def check_hello(hello: Hello, slots: int) -> None:
    """Raises InvalidDocument for one that no agent of the run says.

    Args:
        hello: of somebody with a certificate of the run.
        slots: of each worker of the run.
    """
    _demand(_WORKER.fullmatch(hello.worker), "worker", hello.worker, "not the name of a worker")
    _demand(_NODE.fullmatch(hello.node), "node", hello.node, "not the name of a machine")
    _demand(_INTERFACE.fullmatch(hello.interface), "interface", hello.interface, "not the name of a network interface")
    _demand(hello.slots == slots, "slots", hello.slots, f"not {slots}, as many as each worker of this run has")
    _demand(1 <= hello.pid <= PID, "pid", hello.pid, "not a process id")


def check_agent(message: AgentMessage, worker: str, slots: int) -> None:
    """Raises InvalidDocument for what that worker's agent cannot say, or not of that rank.

    Args:
        message: after its hello.
        worker: what the launcher calls it.
        slots: that it has.
    """
    match message:
        case Hello():
            raise InvalidDocument("a second hello")
        case RankStarted(process, pid):
            check_owner(process, worker, slots)
            _demand(1 <= pid <= PID, "pid", pid, "not a process id")
        case RankExited(process, code):
            check_owner(process, worker, slots)
            _demand(-255 <= code <= 255, "code", code, "not the exit status of a process")
        case RankSaid(process):
            check_owner(process, worker, slots)
        case Output(process, stream, lines):
            check_owner(process, worker, slots)
            _demand(stream in STREAMS, "stream", stream, "neither stdout nor stderr")
            _demand(len(lines) <= LINES, "lines", len(lines), f"more than {LINES} in one message")
        case Heartbeat(cpu, memory):
            _demand(0.0 <= cpu <= CPU, "cpu_percent", cpu, "out of range")
            _demand(0 <= memory <= COUNT, "memory_bytes", memory, "out of range")
        case Noticed(source):
            _demand(len(source) <= RANK_ID, "source", source, "too long")


def check_owner(process: str, worker: str, slots: int) -> None:
    """Raises InvalidDocument unless a process of that name would be of that worker."""
    try:
        name = RankName.parse(process) if len(process) <= RANK_ID else None
    except ValueError:
        name = None
    own = name is not None and str(name.worker) == worker and name.slot < slots and str(name) == process
    _demand(own, "rank_id", process, f"not a rank of {worker}")


def check_rank(message: RankMessage) -> None:
    """Raises InvalidDocument for what no rank has to say: the script that sends it is the user's, not ours."""
    match message:
        case Progress(step) | CheckpointFailed(step):
            _step(step)
        case Metrics(values, at):
            _demand(len(values) <= METRICS, "values", len(values), f"more metrics at once than {METRICS}")
            for value in values.values():
                _demand(math.isfinite(value), "values", value, "not a finite number")
            if at is not None:
                _step(at)
        case CheckpointWritten(uri, step, seconds=seconds):
            _uri(uri)
            _step(step)
            _demand(0.0 <= seconds <= SECONDS, "seconds", seconds, "out of range")
        case Resumed(uri, step):
            _uri(uri)
            _step(step)
        case CheckpointSkipped(uri):
            _uri(uri)


def _step(step: int) -> None:
    _demand(-COUNT <= step <= COUNT, "step", step, "out of range")


def _uri(uri: str) -> None:
    _demand(uri == printable(uri, URI), "uri", uri, "too long, or has characters that a URI does not have")


def _demand(holds: object, field: str, value: object, problem: str) -> None:
    if not holds:
        large = isinstance(value, int) and abs(value) > COUNT  # Python refuses to print the largest.
        shown = "a number" if large else repr(printable(value, 60)) if isinstance(value, str) else value
        raise InvalidDocument(f"{field}: {shown} is {problem}")
