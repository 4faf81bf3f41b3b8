"""An S3 over HTTP for the tests: moto's server, in a process of its own.

Run as a program it serves on a free port of the given address, which it prints, until its standard input ends: so it
never outlives who started it.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment in which boto3 looks nowhere else."""
NAMED = "ELASTIC_TRAINING_TEST_S3"
"""URL of another S3 server for the tests, with a user of those credentials. Their buckets stay there."""


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Start one at this address of this machine, unless the environment names another server; its URL."""
    if named := os.environ.get(NAMED):
        yield named
        return
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **CREDENTIALS},
        text=True,
    )
    with server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the S3 server has not started"
        yield f"http://{address}:{port}"


@functools.cache
def s3_client(url: str) -> Any:
    """The tests' own, one for each server, since making one takes as long as several requests.

    To close it lets go of its connections; the next request makes new ones.
    """
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=CREDENTIALS["AWS_REGION"],
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )


def new_bucket(url: str | None = None) -> str:
    """Make a bucket on this server, unless given that of the environment; its name."""
    name = f"tests-{os.urandom(6).hex()}"
    client = s3_client(url or os.environ["AWS_ENDPOINT_URL_S3"])
    client.create_bucket(Bucket=name)
    client.close()
    return name


def one_write_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """S3 compares and writes in one step; moto does it in two, which several threads would get between."""
    lock = threading.Lock()

    def serialised(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" or "partNumber" in environ["QUERY_STRING"]:
            return application(environ, start_response)
        with lock:
            return application(environ, start_response)

    return serialised


def main() -> None:
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept open, as by every real server
        disable_nagle_algorithm = True

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Not moto's dispatcher, which looks through the folders of all services at every request.
    application = one_write_at_a_time(create_backend_app("s3"))
    server = make_server(sys.argv[1], 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
