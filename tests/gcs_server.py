"""A Google Cloud Storage over HTTP for the tests: of its JSON API what the store asks for, written after its reference.

It is not the real one. What the real one may do otherwise, the same tests find out against another server:
``ELASTIC_TRAINING_TEST_GCS`` (tests/README.md).
"""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

if __name__ == "__main__":  # Started by its path.
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.server_process import serve, server_process

NAMED = "ELASTIC_TRAINING_TEST_GCS"
"""URL of another server for the tests, that asks for no credentials. Their buckets stay there."""


@contextmanager
def gcs_server() -> Iterator[str]:
    """Start one, unless the environment names another server; its URL."""
    if named := os.environ.get(NAMED):
        yield named
        return
    with server_process(__file__) as url:
        yield url


def new_bucket() -> str:
    """Make a bucket on the server that the environment names; its name."""
    url = os.environ["STORAGE_EMULATOR_HOST"]
    name = f"tests-{os.urandom(6).hex()}"
    body = json.dumps({"name": name}).encode()
    asked = urllib.request.Request(
        f"{url}/storage/v1/b?project=tests", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200
    return name


@dataclass
class _Object:
    content: bytes
    generation: int
    updated: datetime


@dataclass
class _Upload:
    bucket: str
    name: str
    content: bytearray = field(default_factory=bytearray)


class _Refused(Exception):
    """Status, reason, message."""


class Server:
    """All its buckets, in memory."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.uploads: dict[str, _Upload] = {}
        self._count = 1_700_000_000_000_000
        self._lock = threading.Lock()

    def answer(self, request: Any) -> Any:
        """One request of werkzeug's."""
        from werkzeug.wrappers import Response

        try:
            # Not the decoded path: a name's slashes are escaped in it.
            path = request.environ["REQUEST_URI"].partition("?")[0]
            with self._lock:
                return self._route(request, path)
        except _Refused as refused:
            status, reason, message = refused.args
            body = {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}
            return Response(json.dumps(body), status, mimetype="application/json")

    def _route(self, request: Any, path: str) -> Any:
        if path == "/storage/v1/b" and request.method == "POST":
            self.buckets[request.get_json()["name"]] = {}
            return _json({})
        if found := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            return self._write(request, found[1])
        found = re.fullmatch(r"/storage/v1/b/([^/]+)/o(?:/(.+))?", path)
        if not found:
            raise _Refused(404, "notFound", "Not Found")
        objects = self._bucket(found[1])
        if found[2] is None:
            return self._list(request, objects)
        name = unquote(found[2])
        if name not in objects:
            raise _Refused(404, "notFound", f"No such object: {found[1]}/{name}")
        if request.method == "DELETE":
            del objects[name]
            return _json({}, 204)
        return self._read(request, name, objects[name])

    def _bucket(self, name: str) -> dict[str, _Object]:
        if name not in self.buckets:
            raise _Refused(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    @staticmethod
    def _read(request: Any, name: str, found: _Object) -> Any:
        from werkzeug.wrappers import Response

        if request.args.get("alt") != "media":
            return _json({"name": name, "size": str(len(found.content)), "generation": str(found.generation)})
        headers = {"x-goog-generation": str(found.generation)}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", "")):
            return Response(found.content[int(asked[1]) : int(asked[2]) + 1], 206, headers)
        return Response(found.content, 200, headers)

    @staticmethod
    def _list(request: Any, objects: dict[str, _Object]) -> Any:
        prefix, delimiter = request.args.get("prefix", ""), request.args.get("delimiter")
        rows: dict[str, Any] = {}
        for name in sorted(objects):
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                rows[prefix + rest[: rest.index(delimiter) + 1]] = None
            else:
                rows[name] = {"name": name, "updated": objects[name].updated.isoformat().replace("+00:00", "Z")}
        start, most = int(request.args.get("pageToken", 0)), int(request.args.get("maxResults", 1000))
        page = list(rows.items())[start : start + most]
        answer: dict[str, Any] = {
            "items": [row for _, row in page if row],
            "prefixes": [name for name, row in page if not row],
        }
        if start + most < len(rows):
            answer["nextPageToken"] = str(start + most)
        return _json({key: value for key, value in answer.items() if value})

    def _write(self, request: Any, bucket: str) -> Any:
        from werkzeug.wrappers import Response

        objects = self._bucket(bucket)
        if upload := request.args.get("upload_id"):
            return self._piece(request, upload)
        name, wanted = request.args["name"], request.args.get("ifGenerationMatch")
        present = objects[name].generation if name in objects else 0
        if wanted is not None and int(wanted) != present:
            raise _Refused(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        if request.args["uploadType"] == "media":
            return self._kept(bucket, name, request.get_data())
        upload = os.urandom(8).hex()
        self.uploads[upload] = _Upload(bucket, name)
        return Response(headers={"Location": f"{request.base_url}?uploadType=resumable&upload_id={upload}"})

    def _piece(self, request: Any, upload: str) -> Any:
        from werkzeug.wrappers import Response

        if upload not in self.uploads:
            raise _Refused(404, "notFound", "Not Found")
        if request.method == "DELETE":
            del self.uploads[upload]
            return Response(status=499)
        begun = self.uploads[upload]
        asked = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", request.headers["Content-Range"])
        assert asked is not None
        data, start = request.get_data(), int(asked[1])
        if start > len(begun.content):
            raise _Refused(503, "backendError", "there is a gap")
        if asked[3] == "*" and len(data) % (256 << 10):
            raise _Refused(400, "badRequest", "not a multiple of 256 KiB")
        begun.content += data[len(begun.content) - start :]  # What is there already is ignored.
        if asked[3] == "*":
            return Response(status=308, headers={"Range": f"bytes=0-{len(begun.content) - 1}"})
        if len(begun.content) != int(asked[3]):
            raise _Refused(400, "badRequest", "another size")
        del self.uploads[upload]
        return self._kept(begun.bucket, begun.name, bytes(begun.content))

    def _kept(self, bucket: str, name: str, content: bytes) -> Any:
        self._count += 1
        self.buckets[bucket][name] = _Object(content, self._count, datetime.now(UTC))
        return _json({"name": name, "generation": str(self._count)})


def _json(answer: object, status: int = 200) -> Any:
    from werkzeug.wrappers import Response

    return Response(json.dumps(answer), status, mimetype="application/json")


def application(answer: Callable[[Any], Any]) -> Callable[..., Iterable[bytes]]:
    """Of WSGI."""
    from werkzeug.wrappers import Request

    return Request.application(answer)  # type: ignore[no-any-return]


if __name__ == "__main__":
    from werkzeug.serving import WSGIRequestHandler

    serve(application(Server().answer), WSGIRequestHandler)
