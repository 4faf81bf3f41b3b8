"""An Azure Blob Storage over HTTP for the tests: of its REST API what the store asks for, written after its reference.

It is not the real one, and asks nobody who they are. What the real one may do otherwise, the same tests find out
against another server: ``ELASTIC_TRAINING_TEST_AZURE`` (tests/README.md).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

if __name__ == "__main__":  # Started by its path.
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.gcs_server import application
from tests.server_process import serve, server_process

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The ones that Azure's emulators have, for everybody to know."""
NAMED = "ELASTIC_TRAINING_TEST_AZURE"
"""URL of another server for the tests, with that account and key. Their containers stay there."""


@contextmanager
def azure_server() -> Iterator[str]:
    """Start one, unless the environment names another server; its URL."""
    if named := os.environ.get(NAMED):
        yield named
        return
    with server_process(__file__) as url:
        yield url


def connection_string(url: str) -> str:
    """Of the account at this server."""
    protocol = urlsplit(url).scheme
    parts = {"DefaultEndpointsProtocol": protocol, "AccountName": ACCOUNT, "AccountKey": KEY}
    return ";".join(f"{name}={value}" for name, value in {**parts, "BlobEndpoint": f"{url}/{ACCOUNT}"}.items())


def new_container() -> str:
    """Make a container on the server that the environment names; its name."""
    from azure.storage.blob import ContainerClient

    name = f"tests-{os.urandom(6).hex()}"
    with ContainerClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"], name) as client:
        client.create_container()
    return name


@dataclass
class _Blob:
    content: bytes = b""
    etag: str = ""
    """Empty as long as there are only blocks."""
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))
    blocks: dict[str, bytes] = field(default_factory=dict)


class _Refused(Exception):
    """Status, code."""


class Server:
    """All its containers, in memory."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, _Blob]] = {}
        self._count = 0x8DC000000000000
        self._lock = threading.Lock()

    def answer(self, request: Any) -> Any:
        """One request of werkzeug's."""
        from werkzeug.wrappers import Response

        try:
            with self._lock:
                return self._route(request)
        except _Refused as refused:
            status, code = refused.args
            body = "" if request.method == "HEAD" else f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
            return Response(body, status, {"x-ms-error-code": code}, mimetype="application/xml")

    def _route(self, request: Any) -> Any:
        from werkzeug.wrappers import Response

        path = unquote(request.environ["REQUEST_URI"].partition("?")[0])
        container, _, name = path.removeprefix(f"/{ACCOUNT}/").partition("/")
        if not name and request.method == "PUT":
            self.containers[container] = {}
            return Response(status=201)
        if container not in self.containers:
            raise _Refused(404, "ContainerNotFound")
        blobs = self.containers[container]
        if not name:
            return self._list(request, blobs)
        if request.method == "PUT":
            return self._write(request, blobs, name)
        if name not in blobs or not blobs[name].etag:
            raise _Refused(404, "BlobNotFound")
        found = blobs[name]
        if request.method == "DELETE":
            del blobs[name]
            return Response(status=202)
        return self._read(request, found)

    def _write(self, request: Any, blobs: dict[str, _Blob], name: str) -> Any:
        from werkzeug.wrappers import Response

        found, data = blobs.get(name, _Blob()), request.get_data()
        if request.args.get("comp") == "block":
            blobs.setdefault(name, _Blob()).blocks[request.args["blockid"]] = data
            return Response(status=201)
        if request.headers.get("If-None-Match") == "*" and found.etag:
            raise _Refused(409, "BlobAlreadyExists")
        if (wanted := request.headers.get("If-Match")) and wanted != found.etag:
            raise _Refused(412, "ConditionNotMet")
        if request.args.get("comp") == "blocklist":
            asked = [each.text or "" for each in ElementTree.fromstring(data)]
            if not set(asked) <= set(found.blocks):
                raise _Refused(400, "InvalidBlockList")
            data = b"".join(found.blocks[each] for each in asked)
        self._count += 1
        blobs[name] = _Blob(data, f'"0x{self._count:X}"')
        return Response(status=201, headers={"ETag": blobs[name].etag, "Last-Modified": _date(blobs[name])})

    @staticmethod
    def _read(request: Any, found: _Blob) -> Any:
        from werkzeug.wrappers import Response

        headers = {"ETag": found.etag, "Last-Modified": _date(found), "x-ms-blob-type": "BlockBlob"}
        if request.method == "HEAD":  # werkzeug leaves the body away.
            return Response(found.content, 200, headers)
        if (wanted := request.headers.get("If-Match")) and wanted != found.etag:
            raise _Refused(412, "ConditionNotMet")
        if not (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("x-ms-range", ""))):
            return Response(found.content, 200, headers)
        start, size = int(asked[1]), len(found.content)
        if start >= size:
            raise _Refused(416, "InvalidRange")
        content = found.content[start : int(asked[2] or size) + 1]
        return Response(content, 206, {**headers, "Content-Range": f"bytes {start}-{start + len(content) - 1}/{size}"})

    @staticmethod
    def _list(request: Any, blobs: dict[str, _Blob]) -> Any:
        from werkzeug.wrappers import Response

        prefix, delimiter = request.args.get("prefix", ""), request.args.get("delimiter")
        with_blocks = "uncommittedblobs" in request.args.get("include", "")
        rows: dict[str, str] = {}
        for name, blob in sorted(blobs.items()):
            if not name.startswith(prefix) or not (blob.etag or with_blocks):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest[: rest.index(delimiter) + 1]
                rows[folder] = f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"
                continue
            told = f"<Last-Modified>{_date(blob)}</Last-Modified><Etag>{blob.etag}</Etag>" if blob.etag else ""
            told += f"<Content-Length>{len(blob.content)}</Content-Length><BlobType>BlockBlob</BlobType>"
            rows[name] = f"<Blob><Name>{escape(name)}</Name><Properties>{told}</Properties></Blob>"
        start, most = int(request.args.get("marker") or 0), int(request.args.get("maxresults", 5000))
        page = "".join(list(rows.values())[start : start + most])
        following = str(start + most) if start + most < len(rows) else ""
        said = {"Prefix": prefix, "MaxResults": str(most), "Delimiter": delimiter or ""}
        body = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in said.items() if value)
        body += f"<Blobs>{page}</Blobs><NextMarker>{following}</NextMarker>"
        return Response(
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults>{body}</EnumerationResults>',
            mimetype="application/xml",
        )


def _date(blob: _Blob) -> str:
    return format_datetime(blob.modified, usegmt=True)


if __name__ == "__main__":
    from werkzeug.serving import WSGIRequestHandler

    serve(application(Server().answer), WSGIRequestHandler)
