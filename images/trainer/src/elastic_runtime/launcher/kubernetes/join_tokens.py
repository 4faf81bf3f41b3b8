"""Tokens with which machines join a run whose launcher is in a pod: the run's root has them, for one launcher each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.run.join import OfferedTokens

log = logging.getLogger(__name__)


class RootTokens:
    """Implements :class:`~elastic_runtime.launcher.joining.Tokens`.

    Args:
        read: returns the root's annotation :data:`~elastic_runtime.run.runobjects.JOIN_TOKENS`, as it is known now.
        launcher: number of this launcher's term. Which tokens were used is in its memory alone.
    """

    def __init__(self, read: Callable[[], str | None], launcher: int) -> None:
        self._read, self._launcher = read, launcher
        self._used: set[str] = set()
        self._limited_log = RateLimitedLog(log)

    def has_token(self, digest: str, now: datetime) -> bool:
        """Whether it is of this launcher, and neither used nor expired."""
        try:
            offered = from_json(OfferedTokens, self._read() or "{}").tokens
        except InvalidDocument as error:
            self._limited_log.warning("the tokens of the run cannot be read: %s", printable(error))
            return False
        mine = any(each.digest == digest and each.launcher == self._launcher and now < each.until for each in offered)
        return mine and digest not in self._used

    def take_token(self, digest: str, now: datetime) -> bool:
        """Use it up. Return whether it could be used."""
        could = self.has_token(digest, now)
        self._used.add(digest)
        return could
