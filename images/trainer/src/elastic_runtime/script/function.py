"""A rank whose script is a function: shipped as source, in a script that calls :func:`call`, or pickled.

``python -m elastic_runtime.script.function`` calls the pickled one. What is unpickled came with the run, over the same
authenticated connection as the command.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import MAX_RETURNED, SCRIPTS, Returned, shared_link

_log = script_logger(__name__)

FUNCTION, ARGUMENTS, PICKLE = "task_function.py", "task_arguments.json", "task_function.pickle"
"""Names of shipped files: the script; ``args`` and ``kwargs``, or of which ``python`` the pickle is; the pickle."""


def python_version() -> str:
    """Return this interpreter's version: ``3.11``. Others cannot read functions that it has pickled."""
    return ".".join(map(str, sys.version_info[:2]))


def call(function: Callable[..., Any]) -> None:
    """Call the shipped function with the shipped arguments."""
    arguments = parse_json((_folder() / ARGUMENTS).read_bytes())
    _report_result(function(*arguments["args"], **arguments["kwargs"]))


def call_pickled() -> None:
    """Call the pickled function with its pickled arguments. Raise SystemExit if this Python cannot read them."""
    theirs = parse_json((_folder() / ARGUMENTS).read_bytes())["python"]
    if theirs != python_version():
        sys.exit(
            f"the function was pickled by Python {theirs}, and this is Python {python_version()}: use an image with "
            'the same, or serializer="source"'
        )
    function, args, kwargs = pickle.loads((_folder() / PICKLE).read_bytes())  # noqa: S301  # see the module
    _report_result(function(*args, **kwargs))


def _report_result(value: object) -> None:
    """What the function has returned, to the agent, if it is there. What cannot be a part of a result is left out."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text, problem = "", f"not JSON ({error})"
    else:
        problem = f"more than {MAX_RETURNED} characters of JSON" if len(text) > MAX_RETURNED else _unread(text)
    if problem:
        _log.warning("what the function has returned is left out of the result: it is %s", problem)
    elif value is not None:
        shared_link().send(Returned(text))


def _unread(text: str) -> str:
    """Why a reader refuses this JSON. Empty: it does not."""
    try:
        parse_json(text)
    except InvalidDocument as error:
        return str(error)
    return ""


def _folder() -> Path:
    return Path(os.environ[SCRIPTS])


if __name__ == "__main__":
    call_pickled()
