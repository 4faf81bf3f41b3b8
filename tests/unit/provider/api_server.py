"""A little API server on loopback: says who may do what, and what it would make; and an Airflow connection to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from elastic_training.clusters.kubernetes import connection

TOKEN = "planted-in-kubeconfig"


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, *_: Any) -> None:
        """Of a client that has hung up."""


class ApiServer(BaseHTTPRequestHandler):
    """One at a time; what it says is set on the class."""

    denied: ClassVar[set[tuple[str, str]]] = set()
    """Resource, with its part, and verb."""
    namespaces: ClassVar[set[str]] = {"training"}
    tried: ClassVar[list[str]] = []
    answer: ClassVar[tuple[int, bytes] | None] = None
    """To everything."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(*(self.answer or self._answer(body)))

    def _answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if body["kind"] == "SelfSubjectAccessReview":
            assert "metadata" not in body, "a real server refuses it"
            asked = body["spec"]["resourceAttributes"]
            resource = f"{asked['resource']}/{asked['subresource']}".rstrip("/")
            allowed = (resource, asked["verb"]) not in self.denied
            return 201, json.dumps({"status": {"allowed": allowed}}).encode()
        assert self.path.endswith("?dryRun=All")
        namespace = self.path.split("/")[4]
        self.tried.append(namespace)
        if namespace in self.namespaces:
            return 201, json.dumps(body).encode()
        message = f'namespaces "{namespace}" not found'
        return 404, json.dumps({"kind": "Status", "reason": "NotFound", "message": message}).encode()

    def _say(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Not on the test's output."""


@contextmanager
def served() -> Iterator[dict[str, Any]]:
    """While it runs: the extras of a connection of type kubernetes that leads to it."""
    server = _Server(("127.0.0.1", 0), ApiServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield {"kube_config": json.dumps(kubeconfig(f"http://127.0.0.1:{server.server_port}"))}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        connection.forget()
        ApiServer.denied, ApiServer.tried, ApiServer.answer = set(), [], None


def kubeconfig(server: str) -> dict[str, Any]:
    """With a token in it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
