"""Answers of the API server as errors of this package.

============================  ==========================================================================
answer                        error
============================  ==========================================================================
401, 408, 429, 5xx, silence   ClusterUnavailable: the same call may succeed later
429, 503 with Retry-After     its special case TooBusy: when
403, no right                 MissingRight: the server's words (verb, resource or path, account) and the remedy
403, quota                    PermanentError: another try of the task may find room
400, 403, 422 and the like    InvalidSettings ``pods``: the server's words
404, no such namespace        PermanentError: no try would find it
404                           RunNotFound
409, 422 for a wrong uid      Conflict, or its special case AlreadyExists
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
_NO_PATH = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) path "(?P<path>[^"]*)"')
_NO_NAMESPACE = re.compile(r'namespaces "[^"]*" not found')
_QUOTA = re.compile(r"exceeded quota|failed quota")
_USER_IN_URL = re.compile(r"//[^/\s'\"]*@")
_LATER = frozenset({0, 401, 408, 429})
_ROLES = {"/openid/v1/jwks": "the ClusterRole system:service-account-issuer-discovery"}
_RULES = {"nodes": "deploy/rbac-nodes.yaml", "pods/resize": "deploy/rbac-grow-memory.yaml"}
"""Of the rights that are good to have; all others: deploy/rbac.yaml."""


class AlreadyExists(Conflict):
    """There is an object of that name."""


class TooBusy(ClusterUnavailable):
    """The server has said when to ask again.

    Args:
        said: for people.
        seconds: from now.
    """

    def __init__(self, said: str, seconds: float) -> None:
        super().__init__(said)
        self.seconds = seconds


def translate(code: int, body: str, what: str, retry_after: str | None = None) -> ElasticError:
    """The error for an answer that is not a success.

    Args:
        code: HTTP status.
        body: usually JSON, a ``Status`` of Kubernetes.
        what: was asked, for people: ``create configmaps my-run in namespace training``.
        retry_after: the header of that name.
    """
    reason, message, fields = _read(body)
    said = f"cannot {what}: {message} ({code})" if message else f"cannot {what} ({code})"
    if code == 404 and _NO_NAMESPACE.match(message):
        return PermanentError(f"{said}. Make it, or correct the namespace of the connection or of the DAG file")
    if code == 404:
        return RunNotFound(said)
    if code == 409 or (code == 422 and "metadata.uid" in fields):  # as newer servers call a failed precondition
        return AlreadyExists(said) if reason == "AlreadyExists" else Conflict(said)
    if code == 410:
        return WatchExpired(said)
    if code in _LATER or code >= 500:
        return (
            TooBusy(said, float(retry_after)) if retry_after and retry_after.isdecimal() else ClusterUnavailable(said)
        )
    if remedy := _remedy(message):
        return MissingRight(f"{said}. {remedy}")
    if _QUOTA.search(message):
        return PermanentError(f"{said}. Raise the namespace's quota, or ask for less")
    return InvalidSettings("pods", said, "Change what the server does not accept, or ask who runs the cluster")


def _remedy(message: str) -> str:
    """For a right that is missing; empty: the message tells of none."""
    if found := _NO_RIGHT.search(message):
        manifest = _RULES.get(found["resource"], "deploy/rbac.yaml")
        return (
            f"Give {found['user']} the right to {found['verb']} {found['resource']}: {manifest} of this project has "
            "the rules that are needed"
        )
    if found := _NO_PATH.search(message):
        role = _ROLES.get(found["path"], f"a ClusterRole with the right to {found['verb']} {found['path']}")
        return f"Bind {found['user']} to {role}, with a ClusterRoleBinding"
    return ""


def unreachable(error: BaseException, what: str) -> ClusterUnavailable:
    """The error for no answer at all; without the user and password that a server's or proxy's URL may hold."""
    said = _USER_IN_URL.sub("//", str(error))
    return ClusterUnavailable(f"cannot {what}: {type(error).__name__}: {said}".rstrip(": "))


def _read(body: str) -> tuple[str, str, list[str]]:
    """Reason, message and fields that are wrong of a ``Status``, or of whatever a proxy has written instead."""
    try:
        status = json.loads(body)
        causes = (status.get("details") or {}).get("causes") or ()
        fields = [str(cause.get("field")) for cause in causes]
        return str(status.get("reason", "")), str(status.get("message", "")), fields
    except (ValueError, AttributeError):
        return "", " ".join(body.split())[:500], []
