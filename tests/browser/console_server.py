"""A small server with the built pages that answers as the API does, with made-up data."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_training.console.app import PAGE_POLICY

REPOSITORY = Path(__file__).parents[2]
ASSETS = REPOSITORY / "provider/src/elastic_training/static"
STATUS = json.loads((Path(__file__).parent / "status.json").read_text())
TASK = "task?dag_id=digits&run_id=manual&task_id=train&map_index={MAP_INDEX}"

STEERED: dict[str, Any] = {
    **STATUS,
    "deadline": {"by": "2026-11-23T05:00:00Z", "budget": 40.0, "spent": 12.4, "words": "", "held_until": None},
    "progress": {"steps": 3000, "percent": 24.5, "seconds": 566.0, "least": 500.0, "most": 700.0}
    | {"basis": "measured with 2 ranks", "by_script": True},
    "paces": [{"ranks": 2, "steps": 400, "seconds": 100.0}],
    "finished": None,
    "events": [*STATUS["events"], {**STATUS["events"][-1], "kind": "standstill", "message": "no step for 90 s"}],
}
"""Of a run with a deadline, a budget and a standstill."""

AROUND = f'<iframe sandbox="allow-scripts allow-same-origin allow-forms" src="{TASK}" width=900 height=800></iframe>'
"""As Airflow 3.3 shows a page of others."""
TIMELINE = gzip.compress(b'{"traceEvents": []}')
COMMAND = "elastic-join digits-train --at 10.0.0.5:7443 --token join-c2VjcmV0"
KINDS = {"js": "text/javascript", "css": "text/css"}
IN_POOL = {"run_id": "manual", "task_id": "train", "map_index": -1}
POOL = {
    "name": "team-a", "least": 1, "most": 4, "largest": 1000, "free": 0, "others": 2, "notebook": "", "may_edit": True,
    "runs": [
        {"run": "digits-1", "priority": 10, "has": 1, "wanted": 1, "reason": "", **IN_POOL, "dag_id": "digits"},
        {"run": "nightly-1", "priority": 1, "has": 1, "wanted": 4, "reason": "priority 1 beside digits-1 (10)"}
        | {**IN_POOL, "dag_id": "nightly"},
    ],
}  # fmt: skip
"""A standing pool, as the list of all runs has it."""


def page_of(**changes: Any) -> dict[str, Any]:
    run = {"name": "digits-train", "place": "local", "dag_id": "digits", "run_id": "manual", "task_id": "train"}
    return {
        "run": {**run, "map_index": -1, "try_number": 2, "tries": [1, 2]},
        "status": STATUS,
        "why": None,
        "message": None,
        "limits": {"minimum": 1, "maximum": 4},
        "live": True,
        "joinable": False,
        "may_edit": True,
        "hidden": [],
        "cost": None,
        "links": {
            "report": "javascript:alert(1)",
            "log": "/log",
            "checkpoints": "s3://bucket/run",
            "timeline": "timeline?dag_id=digits&run_id=manual&task_id=train&map_index=-1&try_number=2",
            "profiles": [],
        },
    } | changes


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Any] = {"task": page_of()}
        self.asked: list[str] = []
        self.posts: list[tuple[str, dict[str, Any], str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/elastic-training/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.rpartition("/")[2]
        if "/static/" in self.path:
            self.answer((ASSETS / name).read_bytes(), KINDS[name.rpartition(".")[2]])
        elif "/api/" in self.path:
            self.server.asked.append(self.path)
            self.answer(json.dumps(self.server.answers[name]).encode(), "application/json")
        elif name == "timeline":
            self.answer(TIMELINE, "application/gzip", attachment="timeline.json.gz")
        elif name == "around":
            self.answer(AROUND.encode(), "text/html", "frame-src 'self'")
        else:
            self.answer((ASSETS / "index.html").read_bytes(), "text/html")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((self.path, body, self.headers["X-Elastic-Training"]))
        answer = {"command": COMMAND} if self.path.endswith("/token") else {}
        self.answer(json.dumps(answer).encode(), "application/json")

    def answer(self, body: bytes, kind: str, policy: str = PAGE_POLICY, attachment: str = "") -> None:
        self.send_response(200)
        if attachment:
            self.send_header("Content-Disposition", f'attachment; filename="{attachment}"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as it:
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        yield it
        it.shutdown()
        thread.join()
