"""An S3 that costs less than its clients: it takes what it is sent, and keeps what is small.

Two cores are shared by the client, which is measured, and the server, which is not. moto's server takes 60 MB a second
there, so that every client looks alike. This one reads bodies into one buffer and forgets them; objects of more than
:data:`KEPT` have a size and no content. It knows the requests of our store and of boto3's transfers, conditions
included, and nothing else; what it is for is comparing clients, not proving that one is right.

Run as a program it prints the port that it listens on, on the loopback interface, and ends with its standard input.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KEPT = 1 << 20
"""Bytes."""
_CHUNK = 1 << 20
_ISO = "2026-11-21T12:00:00.000Z"


@contextmanager
def s3_sink() -> Iterator[dict[str, str]]:
    """Start one; the environment in which boto3 uses it."""
    command = [sys.executable, str(Path(__file__).resolve())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        yield {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass(frozen=True, slots=True)
class _Object:
    size: int
    version: str
    content: bytes | None


class _Contents:
    """Objects by path, and unfinished uploads by id."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, dict[int, int]] = {}
        self._versions = itertools.count(1)

    def version(self) -> str:
        return f'"{next(self._versions):032x}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    contents: _Contents

    def setup(self) -> None:
        super().setup()
        self._buffer = memoryview(bytearray(_CHUNK))

    def _split(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        return unquote(parts.path), {name: values[0] for name, values in query.items()}

    def _body(self) -> tuple[int, bytes | None]:
        size = int(self.headers.get("Content-Length") or 0)
        if size <= KEPT:
            return size, self.rfile.read(size)
        left = size
        while left:
            left -= self.rfile.readinto(self._buffer[: min(left, _CHUNK)])
        return size, None

    def do_PUT(self) -> None:
        path, query = self._split()
        size, content = self._body()
        contents = self.contents
        if "uploadId" in query:
            with contents.lock:
                contents.uploads[query["uploadId"]][int(query["partNumber"])] = size
            return self._answer(200, headers={"ETag": contents.version()})
        with contents.lock:
            before = contents.objects.get(path)
            if self.headers.get("If-None-Match") == "*" and before is not None:
                return self._refuse(412, "PreconditionFailed")
            if "If-Match" in self.headers and (before is None or before.version != self.headers["If-Match"]):
                return self._refuse(412, "PreconditionFailed")
            made = contents.objects[path] = _Object(size, contents.version(), content)
        return self._answer(200, headers={"ETag": made.version})

    def do_POST(self) -> None:
        path, query = self._split()
        self._body()
        contents = self.contents
        with contents.lock:
            version = contents.version()
            if "uploads" in query:
                contents.uploads[version.strip('"')] = {}
                body = f"<UploadId>{version.strip(chr(34))}</UploadId>"
                return self._xml("InitiateMultipartUploadResult", body)
            pieces = contents.uploads.pop(query["uploadId"])
            contents.objects[path] = _Object(sum(pieces.values()), version, None)
        return self._xml("CompleteMultipartUploadResult", f"<ETag>{escape(version)}</ETag>")

    def do_GET(self) -> None:
        path, query = self._split()
        if path.count("/") == 1 and "uploads" in query:
            return self._xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
        if path.count("/") == 1:
            return self._list(path, query)
        found = self.contents.objects.get(path)
        if found is None or found.content is None:
            return self._refuse(404, "NoSuchKey")
        return self._answer(200, found.content, {"ETag": found.version})

    def do_DELETE(self) -> None:
        path, query = self._split()
        with self.contents.lock:
            self.contents.uploads.pop(query.get("uploadId", ""), None)
            if "uploadId" not in query:
                self.contents.objects.pop(path, None)
        self._answer(204)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        start, delimiter = query.get("prefix", ""), query.get("delimiter")
        with self.contents.lock:
            all_keys = sorted(path.removeprefix(f"{bucket}/") for path in self.contents.objects)
        keys = [key for key in all_keys if key.startswith(start)]
        folders = sorted(
            {key[: key.index("/", len(start)) + 1] for key in keys if delimiter and "/" in key[len(start) :]}
        )
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_ISO}</LastModified></Contents>"
            for key in keys
            if not any(key.startswith(folder) for folder in folders)
        )
        items += "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        self._xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{items}")

    def _xml(self, root: str, body: str) -> None:
        self._answer(200, f"<{root}>{body}</{root}>".encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        # Of the listing's time: what is listed is never old, so nobody sweeps.
        for name, value in {"Date": formatdate(1795262400, usegmt=True), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *what: object) -> None:
        """Not on the terminal."""


def main() -> None:
    """Serve until standard input ends."""
    handler = type("Handler", (_Handler,), {"contents": _Contents()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
