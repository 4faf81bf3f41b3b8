"""The API server, for threads: get, list, create, patch, delete; nothing that is left open.

The client's generic ``call_api`` with JSON in and out, so that one function meets every kind of object and every error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from elastic_runtime.errors import MissingRight, RunNotFound
from elastic_runtime.kubernetes.errors import translate, unreachable
from elastic_runtime.kubernetes.transport import ANYTHING, METADATA
from elastic_training.clusters.kubernetes.resources import MERGE_PATCH, Kind, Object

TIMEOUT = (10.0, 30.0)
"""Seconds to connect, and to wait for an answer."""
REFUSALS = (0.5, 1.0, 2.0)
"""Pauses in seconds before a missing right is believed: an API server that has just started knows no rules yet."""
PAGE = 500
"""Objects that a list asks for at once."""


class Api:
    """One namespace of one API server.

    Every method raises the errors of :mod:`~elastic_runtime.kubernetes.errors`.

    Args:
        client: a ``kubernetes.client.ApiClient``; may be shared by many threads.
        namespace: of all objects.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    def get(self, kind: Kind, name: str, part: str | None = None) -> Object:
        """Raises RunNotFound when it is not there."""
        return self._call("GET", kind.path(self.namespace, name, part), self._what("get", kind, name))

    def find(self, kind: Kind, name: str, part: str | None = None) -> Object | None:
        """None when it is not there."""
        try:
            return self.get(kind, name, part)
        except RunNotFound:
            return None

    def list(self, kind: Kind, labels: str = "", fields: str = "", *, metadata: bool = False) -> list[Object]:
        """All that match both selectors; with ``metadata``, no more of each than that."""
        found: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            path, accept = kind.path(self.namespace), METADATA if metadata else ANYTHING
            page = self._call("GET", path, self._what("list", kind), query, accept=accept)
            found += page.get("items") or []
            if not (following := page["metadata"].get("continue")):
                return found
            query["continue"] = following

    def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Object:
        """Raises AlreadyExists."""
        what = self._what("create", kind, manifest["metadata"]["name"])
        return self._call("POST", kind.path(self.namespace), what, body=manifest)

    def patch(self, kind: Kind, name: str, patch: Mapping[str, Any], part: str | None = None) -> Object:
        """JSON merge patch. Raises Conflict when it carries a uid or a resourceVersion that the object has not."""
        path = kind.path(self.namespace, name, part)
        return self._call("PATCH", path, self._what("patch", kind, name), body=patch)

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> None:
        """Ask for its deletion.

        Args:
            kind: of the object.
            name: of the object.
            uid: raise Conflict when it has another one.
            version: raise Conflict when it has another resourceVersion.
            propagation: ``Foreground`` keeps it until all that it owns is gone.
            grace: seconds, for pods; None: the pod's own.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body["preconditions"] = {key: value for key, value in conditions.items() if value is not None}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        self._call("DELETE", kind.path(self.namespace, name), self._what("delete", kind, name), body=body)

    def serves(self, kind: Kind) -> bool:
        """Whether the server knows the kind at all."""
        try:
            known = self._call("GET", kind.group, f"look for {kind.group}")
        except RunNotFound:
            return False
        return any(resource["name"] == kind.plural for resource in known["resources"])

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = ANYTHING,
    ) -> Object:
        for pause in REFUSALS:
            try:
                return self._call_once(method, path, what, query, body, accept)
            except MissingRight:
                time.sleep(pause)
        return self._call_once(method, path, what, query, body, accept)

    def _call_once(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        accept: str,
    ) -> Object:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        content = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            response = self._client.call_api(
                path,
                method,
                query_params=[(key, value) for key, value in (query or {}).items() if value],
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=TIMEOUT,
            )
            answer: Object = json.loads(response.data)
        except ApiException as error:
            body_text = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
            raise translate(error.status or 0, body_text or str(error.reason), what) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise unreachable(error, what) from error
        return answer

    def _what(self, verb: str, kind: Kind, name: str = "") -> str:
        return " ".join(word for word in (verb, kind.plural, name, "in namespace", self.namespace) if word)
