"""Platform of a run whose launcher is a job: its folder is on a file system that all nodes see."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.folder.platform import FolderPlatform

_WATCH_INTERVAL = 0.5
"""Seconds between two looks at the folder, which a server has: each asks it."""


class JobPlatform(FolderPlatform):
    """Platform of a run whose launcher is a job; arguments as :class:`FolderPlatform`."""

    watch_interval = _WATCH_INTERVAL

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._taken = False

    @override
    def leadership(self) -> LeadershipState:
        return LeadershipState.ENDING if self._taken else LeadershipState.HELD

    @override
    def signalled(self, name: str) -> None:
        """The system takes this job: the run is not cancelled. Its next try goes on from what is handed over now."""
        self._taken = True
        self._on_change()
