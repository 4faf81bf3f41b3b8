"""Analysis of a rank's last lines on stderr. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from elastic_runtime.engines.exits import describe
from elastic_runtime.printable import CUT, printable
from elastic_runtime.run.status import MAX_MESSAGE
from elastic_runtime.run.status_failure import MAX_TRACEBACK

_BEGIN = re.compile(r"Traceback \(most recent call last\):|Fatal Python error:|  \+ Exception Group Traceback")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Group)(?:: |$)")
_IN_GRAPH = re.compile(r"(?P<kind>.*: )(?:in user code|(?P<run>Graph execution error)):$")
"""As TensorFlow begins to tell what went wrong in a function that it has made into a graph."""
_OF_GRAPH = re.compile(r"(?:\s*\(0\) [A-Z_]+: +|(?!Detected at node|Stack trace for|\d+ root error|\s))(?P<what>.*)")
"""What it was, behind the places at which the graph was made."""
_CONSEQUENCE = re.compile(
    r"HorovodInternalError|HostsUpdatedInterrupt|\bgloo\b|\bnccl(?:Remote|System)Error|NCCL error|NCCL communicator"
    r"|Connection (?:closed|reset) by peer|Connection refused|Broken pipe|Socket is not connected"
    r"|remote process exited|Dist(?:Store|Network|Backend)Error|monitoredBarrier|collective operation timeout"
    r"|wait timeout after \d+ ?ms|Horovod has been shut down",
    re.IGNORECASE,
)
"""As Horovod, torch, Gloo, NCCL and the kernel tell of a peer that is gone, or is waited for in vain."""
_STACK = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_FRAME = re.compile(r'\s+File "(?P<file>.*)", line \d+ in (?P<function>\S+)')
_IN_PYTHON = re.compile(r"/lib(?:64)?/python3[^/]*/(?!site-packages|dist-packages)|^<frozen ")
_WAITING = re.compile(r"/(?:torch/distributed|horovod)/")
_BACKWARD = "_engine_run_backward"
"""Where a rank of DistributedDataParallel waits for the others' gradients, or computes its own."""
_TORN = re.compile(
    r"PytorchStreamReader|EOFError|UnpicklingError|pickle data was truncated|central directory|BadZipFile"
    r"|archive is corrupted|HeaderTooSmall|MetadataIncompleteBuffer|Error while deserializing|JSONDecodeError"
    r'|torch/serialization\.py", line \d+, in \w*(?:load|open)'
)
"""As torch, pickle, safetensors and json tell of a file that ends too early."""

_TORCHRUN = re.compile(
    r"rendezvous: environment variable \w+ expected, but not set"
    r"|KeyError: '(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)'|KeyError: 'MASTER_(?:ADDR|PORT)'"
)
"""As torch and Python tell of a variable that torchrun sets."""


class Cause(IntEnum):
    """How likely it is that this rank is the first, the likeliest first."""

    OWN = 0
    """It says what went wrong, in itself."""
    SILENT = 1
    """It was killed, or ended without a traceback."""
    HUNG = 2
    """It was still at work when others gave up waiting for it."""
    CONSEQUENCE = 3
    """It says that another one is gone, or does not come."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """The last output of one rank."""

    cause: Cause
    message: str
    """One line."""
    traceback: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Stack of a rank's main thread."""

    at: str
    """Innermost line of it that is no part of Python's own library."""
    waits: bool
    """It was, or may have been, in a collective."""
    text: str


def read_stack(lines: Sequence[str]) -> Stack | None:
    """The last one that a rank has written, as :mod:`elastic_runtime.script.stacks` has it written; None: none."""
    shown = [printable(line) for line in lines]
    begins = [index for index, line in enumerate(shown) if _STACK.match(line)]
    if not begins:
        return None
    # The main thread is the last, or the one that has the signal.
    begin = next((each for each in reversed(begins) if shown[each].startswith("Current")), begins[-1])
    frames = []
    for line in shown[begin + 1 :]:
        if not (match := _FRAME.match(line)):
            break
        frames.append(match)
    if not frames:
        return None
    own = next((each for each in frames if not _IN_PYTHON.search(each["file"])), frames[0])
    waits = any(_WAITING.search(each["file"]) or each["function"] == _BACKWARD for each in frames)
    text = "\n".join([shown[begin], *(each.string for each in frames)])
    return Stack(own.string.strip(), waits, text[:MAX_TRACEBACK])


def tells_of_torn_file(text: str) -> bool:
    """Whether what a rank wrote last is about a file that was written in part."""
    return bool(_TORN.search(text))


def tells_of_lost_peer(text: str) -> bool:
    """Whether a line is about a peer that is gone, or does not come."""
    return bool(_CONSEQUENCE.search(text))


def expects_torchrun(text: str) -> bool:
    """Whether what a rank wrote last is about a variable that torchrun would have set."""
    return bool(_TORCHRUN.search(text))


def read_last_words(lines: Sequence[str], code: int) -> LastWords:
    """From a rank's last lines on stderr, and how it ended (minus a signal's number)."""
    shown = [line for line in (printable(line) for line in lines) if line.strip()]
    begin, last = _traceback(shown)
    kept = shown if begin is None else shown[begin:]
    text = "\n".join(kept)
    if len(text) > MAX_TRACEBACK:
        text = CUT + text[1 - MAX_TRACEBACK :]
    message = _message(shown, last)
    says = message is not None
    if message is None:
        message = shown[-1] if shown and code > 0 else f"ended with {describe(code)}"
    # Of a chain, each part counts: what is raised while a lost peer is dealt with is a consequence of that, too.
    told = [message, *(line for line in kept if not says or _EXCEPTION.match(line))]
    if any(map(tells_of_lost_peer, told)):
        return LastWords(Cause.CONSEQUENCE, message[:MAX_MESSAGE], text)
    return LastWords(Cause.OWN if says else Cause.SILENT, message[:MAX_MESSAGE], text)


def _traceback(lines: Sequence[str]) -> tuple[int | None, int | None]:
    """Indices of the first line of the last traceback, with those it is chained to, and of its own first line."""
    begins = [index for index, line in enumerate(lines) if _BEGIN.match(line)]
    if not begins:
        return None, None
    first = last = begins[-1]
    for before in reversed(begins[:-1]):
        if not lines[first - 1].startswith(_CHAIN):
            break
        first = before
    return first, last


def _message(lines: Sequence[str], traceback: int | None) -> str | None:
    """What was raised: the first line behind the frames; without a traceback's begin, the last that looks like it."""
    if traceback is None:
        said = (index for index in reversed(range(len(lines))) if _EXCEPTION.match(lines[index]))
        return _out_of_graph(lines, next(said, None))
    if lines[traceback].startswith("Fatal"):
        return lines[traceback]
    behind = (index for index in range(traceback + 1, len(lines)) if not lines[index].startswith((" ", "\t")))
    grouped = (line.strip(" |") for line in lines[traceback + 1 :] if "Group" in line)
    return _out_of_graph(lines, next(behind, None)) or next(grouped, None)


def _out_of_graph(lines: Sequence[str], index: int | None) -> str | None:
    """This line; where it tells only that it was in a graph of TensorFlow's, what is told behind it, in one line."""
    if index is None or not (graph := _IN_GRAPH.match(lines[index])):
        return None if index is None else lines[index]
    behind = lines[index + 1 :]
    if graph["run"]:
        told = next(filter(None, map(_OF_GRAPH.match, behind)), None)
        return graph["kind"] + told["what"] if told else lines[index]
    return next((line.strip() for line in reversed(behind) if _EXCEPTION.match(line.strip())), lines[index])
