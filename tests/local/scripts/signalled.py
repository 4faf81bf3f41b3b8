"""A checkpoint of a script's own, of any framework: written when the script is signalled, and after so many steps."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import FrameType

from pace import Pace

from elastic_runtime.world import current_world

EVERY = int(os.environ.get("CHECKPOINT_EVERY", "0"))
"""Steps from one checkpoint to the next; 0: only those on a signal."""


class Signalled(ABC):
    """What was trained in so many steps, as the file has it.

    Args:
        pace: of the test.
        file: its name.
    """

    def __init__(self, pace: Pace, file: str) -> None:
        self.step, self._asked, self._pace = 0, False, pace
        self._file = Path(pace.folder, file)
        if self._file.exists():
            self.load(self._file)
        signal.signal(signal.SIGTERM, self._ask)

    @abstractmethod
    def load(self, file: Path) -> None:
        """Take what the file has."""

    @abstractmethod
    def write(self, file: Path) -> None:
        """Write it all."""

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def commit(self) -> None:
        """Between two steps: if any rank was asked to, all end here."""
        world = current_world()
        asked = world.maximum([self._asked]) == [True]
        if world.rank == 0 and (asked or (EVERY and self.step % EVERY == 0)):
            self.write(part := self._file.with_suffix(".part"))
            part.replace(self._file)
            self._pace.note(saved=self.step)
        if asked:
            sys.exit(0)

    check_host_updates = commit
