"""Plausibility of messages from agents and ranks. Anything else does not come from this package.

Types are the codec's to check (:mod:`elastic_runtime.documents`). Here is what a type leaves open, so that one worker
cannot speak for another, and no number or name of it can end the launcher or fill the status.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import (
    MAX_PLACE,
    MAX_RETURNED,
    BatchSize,
    Busy,
    CheckpointFailed,
    CheckpointSkipped,
    CheckpointWritten,
    Metrics,
    OutputsSaved,
    OwnTime,
    Progress,
    RankMessage,
    Resumed,
    Returned,
    Standing,
    TotalSteps,
    TrainingEnded,
    TrainingStopped,
)
from elastic_runtime.protocol.rank_names import RankName
from elastic_runtime.protocol.shards import MOST_APART, MOST_SHARDS, ShardWanted
from elastic_runtime.protocol.tallies import COMMIT, MARKS, MAX_KINDS, MAX_TAIL, OTHER, Tally
from elastic_runtime.protocol.wire import (
    AgentMessage,
    Heartbeat,
    Hello,
    NamedElsewhere,
    Output,
    RankExited,
    RankSaid,
    RankStarted,
    RankState,
    TracesSaved,
)
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.status import MAX_GPU_NAME
from elastic_runtime.run.waits import LONGEST_BUSY

COUNT = 2**53
"""Steps, bytes: whole numbers that every reader of JSON keeps."""
SECONDS = 10.0**9
DAY = 86400.0
PID = 2**31 - 1
CPU = 10.0**7
"""Percent of one core: a hundred thousand cores."""
RANK_ID = 128
"""Characters of a rank's name."""
URI = 2048
"""Characters of a checkpoint's."""
GPUS = 64
"""GPUs of one worker at most."""
SAMPLES = 10.0**12
"""In a global batch."""
METRICS = 1000
"""In one message; the status keeps fewer."""
LINES = 2000
"""Lines of output in one message at most."""
TRACES = 100
"""Files that one worker has saved for its ranks."""
TOKEN = 6000
"""Characters of an agent's token. Kubernetes' have 1,000 to 2,000."""
STREAMS = ("stdout", "stderr")
_WORKER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TRACE = re.compile(r"traces/(?:timeline|profile)-[A-Za-z0-9._-]{1,180}")
_TOKEN = re.compile(r"[-_.A-Za-z0-9]*")
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
    _demand(not hello.address or is_address(hello.address), "address", hello.address, "not an IP address")
    _demand(hello.slots == slots, "slots", hello.slots, f"not {slots}, as many as each worker of this run has")
    _demand(1 <= hello.pid <= PID, "pid", hello.pid, "not a process id")
    fits = len(hello.token) <= TOKEN and _TOKEN.fullmatch(hello.token)
    _demand(fits, "token", f"{len(hello.token)} characters", "not a token")  # Never the text itself.


def check_agent(message: AgentMessage, worker: str, slots: int) -> None:  # noqa: C901  # one case a message
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
        case RankExited(process, code, ago):
            check_owner(process, worker, slots)
            _demand(-255 <= code <= 255, "code", code, "not the exit status of a process")
            _demand(0.0 <= ago <= DAY, "ago", ago, "out of range")
        case RankSaid(process) | RankState(process):
            check_owner(process, worker, slots)
        case Output(process, stream, lines):
            check_owner(process, worker, slots)
            _demand(stream in STREAMS, "stream", stream, "neither stdout nor stderr")
            _demand(len(lines) <= LINES, "lines", len(lines), f"more than {LINES} in one message")
        case Heartbeat():
            _heartbeat(message)
        case TracesSaved(files):
            _demand(len(files) <= TRACES, "files", len(files), f"more than {TRACES}")
            for each in files:
                _demand(_TRACE.fullmatch(each), "files", each, "not the name of a trace")
        case NamedElsewhere(named):
            _demand(not named or is_address(named), "named", named, "not an IP address")
        case ReclaimNotice(source):
            _demand(len(source) <= RANK_ID, "source", source, "too long")


def _heartbeat(beat: Heartbeat) -> None:
    _demand(0.0 <= beat.cpu_percent <= CPU, "cpu_percent", beat.cpu_percent, "out of range")
    _demand(len(beat.gpus) <= GPUS, "gpus", len(beat.gpus), f"more than {GPUS}")
    counts: dict[str, float | None] = {
        "memory_bytes": beat.memory_bytes,
        "receive_bytes_per_second": beat.receive_bytes_per_second,
        "transmit_bytes_per_second": beat.transmit_bytes_per_second,
    }
    for gpu in beat.gpus:
        _demand(gpu.name == printable(gpu.name, MAX_GPU_NAME), "name", gpu.name, "not the name of a GPU")
        _demand(0 <= gpu.index < GPUS, "index", gpu.index, "out of range")
        _demand(gpu.percent is None or 0.0 <= gpu.percent <= 100.0, "percent", gpu.percent, "out of range")
        _count("gpu.memory_bytes", gpu.memory_bytes)
        _count("gpu.memory_total_bytes", gpu.memory_total_bytes)
    for name, value in counts.items():
        _count(name, value)


def _count(name: str, value: float | None) -> None:
    _demand(value is None or 0 <= value <= COUNT, name, value, "out of range")


def check_owner(process: str, worker: str, slots: int) -> None:
    """Raises InvalidDocument unless a process of that name would be of that worker."""
    try:
        name = RankName.parse(process) if len(process) <= RANK_ID else None
    except ValueError:
        name = None
    own = name is not None and str(name.worker) == worker and name.slot < slots and str(name) == process
    _demand(own, "rank_id", process, f"not a rank of {worker}")


def check_rank(message: RankMessage) -> None:  # noqa: C901, PLR0912  # one case a message
    """Raises InvalidDocument for what no rank has to say: the script that sends it is the user's, not ours."""
    match message:
        case Progress(step) | CheckpointFailed(step) | TrainingStopped(step):
            _step(step)
        case Metrics():
            _metrics(message)
        case CheckpointWritten(uri, step, seconds=seconds, stalled=stalled):
            _uri(uri)
            _step(step)
            _demand(0.0 <= seconds <= SECONDS, "seconds", seconds, "out of range")
            _demand(0.0 <= stalled <= SECONDS, "stalled", stalled, "out of range")
        case TrainingEnded(step) if step is not None:
            _step(step)
        case BatchSize() | TotalSteps():
            _size(message)
        case Busy(what, seconds):
            _text("what", what)
            _demand(0.0 <= seconds <= LONGEST_BUSY, "seconds", seconds, "out of range")
        case Standing():
            _standing(message)
        case ShardWanted():
            _shard(message)
        case OwnTime(seconds, waited, steps):
            _demand(0.0 < seconds <= DAY, "seconds", seconds, "out of range")
            _demand(0.0 <= waited <= seconds, "waited", waited, "not a part of that time")
            _count("steps", steps)
        case Tally():
            _tally(message)
        case Resumed(uri, step):
            _uri(uri)
            _step(step)
        case CheckpointSkipped(uri):
            _uri(uri)
        case OutputsSaved(files, size):
            _count("files", files)
            _count("bytes", size)
        case Returned(value):
            _demand(len(value) <= MAX_RETURNED, "value", value, f"longer than {MAX_RETURNED} characters")
            _json(value)


def _standing(message: Standing) -> None:
    _count("commits", message.commits)
    _count("collectives", message.collectives)
    _count("of_all", message.of_all)
    _count("beside", message.beside)
    _demand(0.0 <= message.idle <= SECONDS, "idle", message.idle, "out of range")
    _text("place", message.place)
    if message.step is not None:
        _step(message.step)


def _shard(message: ShardWanted) -> None:
    _count("serial", message.serial)
    _text("stream", message.stream)
    _text("digest", message.digest)
    _count("step", message.step)
    _demand(1 <= message.size <= MOST_SHARDS, "size", message.size, "out of range")
    _demand(0 <= message.number <= message.size, "number", message.number, "out of range")
    _demand(message.seconds is None or 0.0 <= message.seconds <= MOST_APART, "seconds", message.seconds, "out of range")
    _demand(0.0 <= message.lease <= LONGEST_BUSY, "lease", message.lease, "out of range")


def _tally(message: Tally) -> None:
    for name in ("commit", "collectives", "order", "steps", "marks"):
        _count(name, getattr(message, name))
    tail = message.tail
    _demand(len(tail) <= min(MAX_TAIL, message.marks), "tail", tail[:20], "longer than what it is the end of")
    _demand(set(tail) <= {*MARKS, OTHER, COMMIT}, "tail", tail[:20], "not of marks alone")
    if message.step is not None:
        _step(message.step)
    _demand(len(message.kinds) <= MAX_KINDS, "kinds", len(message.kinds), f"more kinds of collectives than {MAX_KINDS}")
    for kind, times in message.kinds.items():
        _text("kinds", kind)
        _count("kinds", times)


def _text(name: str, text: str) -> None:
    _demand(text == printable(text, MAX_PLACE), name, text, f"not a line of at most {MAX_PLACE} characters")


def _metrics(message: Metrics) -> None:
    count = len(message.values)
    _demand(count <= METRICS, "values", count, f"more metrics at once than {METRICS}")
    for value in message.values.values():
        _demand(math.isfinite(value), "values", value, "not a finite number")
    if message.step is not None:
        _step(message.step)


def _size(message: BatchSize | TotalSteps) -> None:
    if isinstance(message, BatchSize):
        _demand(0.0 < message.samples <= SAMPLES, "samples", message.samples, "out of range")
    else:
        _demand(1 <= message.steps <= COUNT, "steps", message.steps, "out of range")


def _step(step: int) -> None:
    _demand(-COUNT <= step <= COUNT, "step", step, "out of range")


def _json(text: str) -> None:
    """As every reader of JSON takes it, databases too."""
    try:
        whole = json.dumps(parse_json(text), allow_nan=False, ensure_ascii=False)
        whole.encode()  # or it has half a character
    except (ValueError, RecursionError):
        raise InvalidDocument("value: not JSON") from None
    _demand("\\u0000" not in whole, "value", text, "JSON with the character 0")


def _uri(uri: str) -> None:
    _demand(uri == printable(uri, URI), "uri", uri, "too long, or has characters that a URI does not have")


def _demand(holds: object, field: str, value: object, problem: str) -> None:
    if not holds:
        large = isinstance(value, int) and abs(value) > COUNT  # Python refuses to print the largest.
        shown = "a number" if large else repr(printable(value, 60)) if isinstance(value, str) else value
        raise InvalidDocument(f"{field}: {shown} is {problem}")


def is_address(text: str) -> bool:
    """Whether this is an IP address as programs write it, without a zone."""
    try:
        return "%" not in text and str(ipaddress.ip_address(text)) == text
    except ValueError:
        return False
