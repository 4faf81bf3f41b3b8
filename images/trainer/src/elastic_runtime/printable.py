"""Text from outside, made fit for one line of a log, an event or a status.

Whoever can choose a name, a reason or a line of output could otherwise end the line and write another one in the
launcher's name, move the cursor of a terminal, turn the order of the characters around, or fold the lines that follow
out of sight: Airflow's page of a task's log opens and closes a group at each line that holds ``::group::`` or
``::endgroup::``, wherever in the line; ``##[group]`` is the older form.
"""

from __future__ import annotations

import re

CUT = "…"
"""At the end of what was longer."""
SENTENCE = 400
"""Characters of a name or a reason in a line."""
LONG = 4000
"""Characters of what a server that we trust says, remedy and all."""

_UNFIT = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # control characters but the tab: ends of lines, ESC, NEL, CSI
    "\u2028\u2029"  # ends of lines to str.splitlines and to JavaScript
    "\u202a-\u202e\u2066-\u2069"  # which turn the direction of what follows
    "\ud800-\udfff]"  # halves of a pair: no encoding has them
    "|(?<=:):(?=(?:end)?group::)|#(?=#\\[(?:end)?group\\])",
    re.IGNORECASE,
)


def printable(text: object, limit: int = SENTENCE) -> str:
    r"""``str(text)`` on one line, where nothing means more than itself; what would, as ``\x1b`` or ``\u2028``.

    A backslash stays what it is, so doing it twice changes nothing, and a path stays readable.

    Args:
        text: from outside.
        limit: characters; of more, the last is :data:`CUT`.
    """
    whole = str(text)
    fit = _UNFIT.sub(_escaped, whole[: limit + 1])
    return fit if len(fit) <= limit else fit[: limit - 1] + CUT


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
