"""A run that trains while strangers hold thousands of connections to everything of it that listens.

Undisturbed for a while, then with them and two resizes, then undisturbed again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil

from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from elastic_runtime.errors import FailureKind
from tests.local.harness import ScriptedRun
from tests.paced import Script
from tests.soak.figures import Figures, Goals, rate
from tests.strangers import strangers

STEP = 0.02
"""Seconds that a step takes at least."""
SETTLE = 5.0
"""Seconds after a change that count for neither side."""
START = 2
"""Workers while it is undisturbed."""
SIZES = (3, START)
"""Asked for one after the other, while the strangers are there."""


def main() -> int:
    """Exit status 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--connections", type=int, default=2000, help="of strangers (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="with them (default: %(default)s)")
    parser.add_argument("--quiet", type=float, default=40.0, help="seconds before, and after (default: %(default)s)")
    options = parser.parse_args()
    handle_sigterm()
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            figures = soak(Path(folder), options.connections, options.seconds, options.quiet)
        finally:
            end_descendants()
    print(
        f"throughput {figures.disturbed:.1f} of {figures.quiet:.1f} steps/s ({figures.disturbed / figures.quiet:.3f}), "
        f"launcher {figures.memory:.0f} MB, resizes {', '.join(f'{each:.2f}' for each in figures.resizes)} s; "
        f"strangers held {figures.held:.0f} connections (median) and made {figures.made}"
    )
    troubles = figures.troubles(Goals())
    print("\n".join(troubles) or "well")
    return int(bool(troubles))


def soak(base: Path, connections: int, seconds: float, quiet: float) -> Figures:
    """One run, from its start to its end."""
    run = ScriptedRun(base, Script("doubles.py", epochs=10_000_000, step_seconds=STEP, commit_every=10), (1, 2, 3))
    run.start()
    try:
        run.worlds(START)
        with memory_of(run.launcher.pid) as worst:
            before = stand(quiet, "undisturbed")
            with strangers(connections, listening(run)) as seen:
                stand(SETTLE, "the strangers come")
                spans, resizes = [stand(seconds / (len(SIZES) + 1), f"{connections} strangers")], []
                for size in SIZES:
                    resizes.append(resize(run, size))
                    stand(SETTLE, f"{size} workers")
                    span = stand(seconds / (len(SIZES) + 1), f"{connections} strangers")
                    if size == START:  # Other sizes make other steps, whoever knocks.
                        spans.append(span)
                held, made = median(each.held for each in seen), seen[-1].made
            stand(SETTLE, "the strangers go")
            after = stand(quiet, "undisturbed")
        run.folder.ask_to_end("the soak is over")
        run.until(run.is_over, "the launcher has ended", alive=False)
        steps = sorted(note["time"] for note in run.notes() if note.get("rank") == 0)
        return Figures(
            quiet=rate(steps, [before, after]),
            disturbed=rate(steps, spans),
            memory=worst[0] / 1e6,
            resizes=tuple(resizes),
            held=held,
            made=made,
            ended=_end(run),
        )
    finally:
        run.close()


def _end(run: ScriptedRun) -> str:
    if run.status().failure is not FailureKind.CANCELLED:
        return f"the run has {run.status().phase}: {run.status().reason}"
    if run.log().count("Traceback"):
        return "the log has a traceback"
    try:
        run.assert_nothing_left()
    except AssertionError as error:
        return str(error)
    return ""


def stand(seconds: float, what: str) -> tuple[float, float]:
    """So long, with progress that moves. Returns begin and end, on the clock of the ranks' notes."""
    begin = time.monotonic()
    while (left := begin + seconds - time.monotonic()) > 0:
        print(f"\r{what}: {left:4.0f} s ", end="" if sys.stdout.isatty() else "\n", flush=True)
        time.sleep(min(left, 1.0 if sys.stdout.isatty() else 30.0))
    return begin, time.monotonic()


def resize(run: ScriptedRun, size: int) -> float:
    """Seconds from the wish to the first step in a world of that size."""
    asked = time.monotonic()
    run.resize(size)
    run.until_status(lambda status: status.world_size == size, f"a world of {size}")

    def trained() -> float | None:
        return min(
            (note["time"] for note in run.notes() if note.get("size") == size and note["time"] > asked), default=None
        )

    return run.until(trained, f"a world of {size} trains") - asked


def listening(run: ScriptedRun) -> list[tuple[str, int]]:
    """Everything of the run that listens: the launcher's ports, and the ranks'."""
    sockets = [each for process in run.processes() for each in process.net_connections("tcp")]
    found = sorted({(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN})
    assert found, "nothing of the run listens"
    return found


@contextmanager
def memory_of(pid: int) -> Iterator[list[int]]:
    """Resident bytes of that process at its worst; the list's only element, right at the end."""
    worst, ended, process = [0], threading.Event(), psutil.Process(pid)

    def watch() -> None:
        while not ended.wait(0.5):
            worst[0] = max(worst[0], process.memory_info().rss)

    watching = threading.Thread(target=watch, name="memory")
    watching.start()
    try:
        yield worst
    finally:
        ended.set()
        watching.join()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
