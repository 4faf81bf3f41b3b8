"""A server for the tests in a process of its own, which never outlives who started it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def server_process(
    program: str, address: str = "127.0.0.1", environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a program that calls :func:`serve`; its URL."""
    server = subprocess.Popen(
        [sys.executable, program, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        text=True,
    )
    with server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, f"{program} has not started"
        yield f"http://{address}:{port}"


def serve(application: Callable[..., Iterable[bytes]], handler: type[Any]) -> None:
    """On a free port of the address in the arguments, which is printed, until standard input ends.

    Args:
        application: of WSGI.
        handler: of werkzeug.
    """
    from werkzeug.serving import make_server

    class Handler(handler):  # type: ignore[misc]
        protocol_version = "HTTP/1.1"  # connections are kept open, as by every real server
        disable_nagle_algorithm = True

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(sys.argv[1], 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()
