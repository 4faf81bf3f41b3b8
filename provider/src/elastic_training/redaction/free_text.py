"""The texts of a status that a script, a rank or a server has worded; and these without secrets, or not at all.

Its other texts are names and words that programs compare. A secret may be equal to one of them (``APP_TOKEN=failed``),
so nothing is masked there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run.status import Event, EventKind, Series, Status
from elastic_runtime.run.status_failure import without_quotes

Hide = Callable[[str], str]
_LONGEST = 10_000
"""Characters of a text; no launcher of ours writes as many."""
_WORDED = frozenset(
    {
        *(EventKind.FINISHED, EventKind.STANDSTILL, EventKind.RANKS_DIFFER, EventKind.WARNING),
        *(EventKind.CHECKPOINT, EventKind.CHECKPOINT_SKIPPED, EventKind.HANDOVER, EventKind.RESUMED),
    }
)
"""Events whose messages may quote a script, also in the URI of a checkpoint, which a rank tells."""

_DOLLARS = re.compile(r"[0-9.]+ \$")


def without_secrets(status: Status, hide: Hide) -> Status:
    """The same status, with ``hide`` applied to each free text in it, as long as a launcher writes it at most."""
    first = status.first_failure
    return replace(
        status,
        reason=hide(status.reason[:_LONGEST]),
        first_failure=first
        and replace(first, message=hide(first.message[:_LONGEST]), traceback=hide(first.traceback[:_LONGEST])),
        events=tuple(replace(each, message=hide(each.message[:_LONGEST])) for each in status.events),
        checkpoint=status.checkpoint and replace(status.checkpoint, uri=hide(status.checkpoint.uri)),
        outputs=status.outputs and replace(status.outputs, uri=hide(status.outputs.uri)),
        timeline=status.timeline and hide(status.timeline),
        profiles=tuple(map(hide, status.profiles)),
        returned=_hidden_json(status.returned, hide),
    )


def without_logs(status: Status) -> Status:
    """The same status without anything that stands in the task's log alone: what ranks wrote."""
    first = status.first_failure
    return replace(
        status,
        reason=without_quotes(status.reason),
        first_failure=first and replace(first, message="", traceback=""),
        events=tuple(map(_unquoted, status.events)),
    )


def without_results(status: Status) -> Status:
    """The same status without what the task leaves as XCom: metrics, what the function returned, files, cost."""
    deadline = status.deadline
    return replace(
        status,
        reason=without_dollars(status.reason),
        events=tuple(replace(each, message=without_dollars(each.message)) for each in status.events),
        deadline=deadline and replace(deadline, budget=None, spent=None, words=without_dollars(deadline.words)),
        metrics={},
        series={},
        sample_throughput=Series(),
        returned=None,
        outputs=None,
        checkpoint=None,
        timeline=None,
        profiles=(),
    )


def without_dollars(text: str) -> str:
    """Return a text of a launcher without amounts of money."""
    return _DOLLARS.sub("… $", text)


def _unquoted(event: Event) -> Event:
    return replace(event, message="" if event.kind in _WORDED else without_quotes(event.message))


def _hidden_json(text: str | None, hide: Hide) -> str | None:
    """JSON stays JSON: a number may be a secret, too."""
    if text is None:
        return None
    try:
        return json.dumps(_hidden(parse_json(text), hide))
    except InvalidDocument:  # No launcher of ours has written that.
        return hide(text)


def _hidden(value: Any, hide: Hide) -> Any:
    match value:
        case str():
            return hide(value)
        case dict():
            return {hide(key): _hidden(each, hide) for key, each in value.items()}
        case list():
            return [_hidden(each, hide) for each in value]
        case bool() | None:
            return value
    shown = hide(str(value))
    return value if shown == str(value) else shown
