"""Loggers of modules that run in a user's script."""

from __future__ import annotations

import logging
import sys


class _Kept(logging.Logger):
    """Not disabled by :mod:`logging.config`.

    A configuration disables all loggers that are there already, unless it has ``disable_existing_loggers: False``.
    These are: scripts import first, and warm processes import before any script. Levels, handlers,
    ``logging.disable`` and a script that sets ``disabled`` itself have the effect that they always have.
    """

    _is_disabled = False

    @property
    def disabled(self) -> bool:
        """Whether nothing is logged."""
        return self._is_disabled

    @disabled.setter
    def disabled(self, value: bool) -> None:
        if sys._getframe(1).f_globals.get("__name__") != "logging.config":
            self._is_disabled = bool(value)


def script_logger(name: str) -> logging.Logger:
    """Return the logger of that name, for what a script must not lose by configuring its own logging."""
    logger = logging.getLogger(name)
    if not isinstance(logger, _Kept):  # Its class may be one that the script has set for all loggers.
        logger.__class__ = type("ScriptLogger", (_Kept, type(logger)), {})
    return logger
