"""Log block about the rank that failed first. Pure."""

from __future__ import annotations

from elastic_runtime.engines.exits import describe
from elastic_runtime.printable import printable
from elastic_runtime.run.status_failure import MAX_TRACEBACK, FirstFailure


def failure_block(first: FirstFailure, more: str) -> str:
    """Several lines: who, when, what, and where there is more.

    Args:
        first: of the run's final status.
        more: how its worker's own log is read.
    """
    who = printable(first.who)
    step = "" if first.step is None else f" at step {first.step}"
    ended = printable(describe(first.exit_code))
    time = f"{first.time:%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"{who[:1].upper()}{who[1:]} failed first{step}, with {ended}, {time}:", printable(first.message)]
    # The whole is bounded, and so is each line.
    lines += [f"    {printable(line)}" for line in first.traceback[:MAX_TRACEBACK].split("\n") if line.strip()]
    return "\n".join([*lines, f"The log of its worker: {printable(more)}"])
