"""A script that is written for torchrun, and what it has to stand, wherever its ranks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind, Status
from tests.paced import ResizedRun, Script

STEPS, EVERY = 24, 8
SPEC: Mapping[str, Any] = {
    "engine": "torchrun",
    "restart": RestartSpec("SIGUSR1", grace=20.0),
    "recovery": RecoverySpec(backoff=0.5),
}
"""Fields of a spec."""


class Plain:
    """``plain_torchrun.py``, as a test steers it by files.

    Args:
        folder: where it keeps its checkpoint.
        stands: steps after which it stands.
    """

    def __init__(self, folder: Path, *stands: int) -> None:
        self.folder = folder
        for step in stands:
            (folder / f"stand-{step}").touch()

    @property
    def script(self) -> Script:
        """With its arguments."""
        return Script("plain_torchrun.py", (str(self.folder), str(STEPS), str(EVERY)))

    def at(self, run: ResizedRun, step: int) -> None:
        """Await that it stands there."""
        run.until((self.folder / f"at-{step}").exists, f"it stands at {step}")

    def go(self, step: int) -> None:
        """End that."""
        (self.folder / f"stand-{step}").unlink()

    def steps(self) -> Counter[int]:
        """Step to how often it was done."""
        return Counter(int(line.split()[0]) for line in (self.folder / "steps").read_text().splitlines())


def sized_noticed_and_lost(folder: Path) -> Plain:
    """For :func:`through_sizes_a_notice_and_a_loss`."""
    return Plain(folder, 3, 6, 11, 20)


def through_sizes_a_notice_and_a_loss(
    run: ResizedRun, plain: Plain, reclaim: Callable[[str], None], finish: Callable[[], Status]
) -> None:
    """Two ranks, three, two, one until the worker that is taken is replaced; and a SIGKILL.

    Args:
        run: of that script, with 1 to 3 workers, started with 2, and :data:`SPEC`.
        plain: it.
        reclaim: gives a worker its notice.
        finish: awaits the run's success.
    """
    plain.at(run, 3)
    run.resize(3)
    run.worlds(2, 3)
    plain.go(3)
    plain.at(run, 6)
    run.resize(2)
    run.worlds(2, 3, 2)
    plain.go(6)
    plain.at(run, 11)
    reclaim(run.worker(0).name)
    run.worlds(2, 3, 2, 1, 2)
    assert run.events(EventKind.RESTARTED, EventKind.LOST, EventKind.RANK_FAILED) == []
    plain.go(11)
    plain.at(run, 20)
    run.kill_rank(0)
    run.until_status(lambda status: run.events(EventKind.RESTARTED) and status.world_size == 2, "another start")
    plain.go(20)
    finish()
    again = Counter(range(STEPS // EVERY * EVERY - EVERY + 1, 21))
    assert plain.steps() == Counter(range(1, STEPS + 1)) + again, "from the last checkpoint to the loss, twice"
