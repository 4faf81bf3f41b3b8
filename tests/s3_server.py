"""An S3 over HTTP for the tests: moto's server, in a process of its own."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

if __name__ == "__main__":  # Started by its path.
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.server_process import serve, server_process

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
    with server_process(__file__, address, CREDENTIALS) as url:
        yield url


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

    # Not moto's dispatcher, which looks through the folders of all services at every request.
    serve(one_write_at_a_time(create_backend_app("s3")), MotoRequestHandler)


if __name__ == "__main__":
    main()
