"""What the API server answers, as errors of this package.

============================  ==========================================================================
answer                        error
============================  ==========================================================================
401, 408, 429, 5xx, silence   ClusterUnavailable: the same call may succeed later
403, no right                 MissingRight: the server's words (verb, resource, account) and the remedy
403, quota                    PermanentError: another try of the task may find room
400, 403, 422 and the like    InvalidSettings ``pods``: the server's words
404, no such namespace        PermanentError: no try would find it
404                           RunNotFound
409                           Conflict, or its special case AlreadyExists
410                           WatchExpired: a watch has to list again
============================  ==========================================================================
"""

from __future__ import annotations

import json
import re

from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidSettings,
    MissingRight,
    PermanentError,
    RunNotFound,
    WatchExpired,
)

_NO_RIGHT = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"')
_NO_NAMESPACE = re.compile(r'namespaces "[^"]*" not found')
_QUOTA = re.compile(r"exceeded quota|failed quota")
_LATER = frozenset({0, 401, 408, 429})


class AlreadyExists(Conflict):
    """There is an object of that name."""


def translate(code: int, body: str, what: str) -> ElasticError:
    """The error for an answer that is none of success.

    Args:
        code: HTTP status.
        body: usually JSON, a ``Status`` of Kubernetes.
        what: was asked, for people: ``create configmaps my-run in namespace training``.
    """
    reason, message = _read(body)
    said = f"cannot {what}: {message} ({code})" if message else f"cannot {what} ({code})"
    if code == 404 and _NO_NAMESPACE.match(message):
        return PermanentError(f"{said}. Make it, or correct the namespace of the connection or of the DAG file")
    if code == 404:
        return RunNotFound(said)
    if code == 409:
        return AlreadyExists(said) if reason == "AlreadyExists" else Conflict(said)
    if code == 410:
        return WatchExpired(said)
    if code in _LATER or code >= 500:
        return ClusterUnavailable(said)
    if found := _NO_RIGHT.search(message):
        return MissingRight(
            f"{said}. Give {found['user']} the right to {found['verb']} {found['resource']}: deploy/rbac.yaml of this "
            "project has the rules that are needed"
        )
    if _QUOTA.search(message):
        return PermanentError(f"{said}. Raise the namespace's quota, or ask for less")
    return InvalidSettings("pods", said, "Change what the server does not accept, or ask who runs the cluster")


def unreachable(error: BaseException, what: str) -> ClusterUnavailable:
    """The error for no answer at all."""
    return ClusterUnavailable(f"cannot {what}: {type(error).__name__}: {error}".rstrip(": "))


def _read(body: str) -> tuple[str, str]:
    """Reason and message of a ``Status``, or of whatever a proxy has written instead."""
    try:
        status = json.loads(body)
        return str(status.get("reason", "")), str(status.get("message", ""))
    except (ValueError, AttributeError):
        return "", " ".join(body.split())[:500]
