"""Servers for the tests of the stores, and what the tests of one store share."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.objects import upload
from elastic_runtime.checkpoint.s3 import S3Store
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from tests import azure_server as azure_servers
from tests import gcs_server as gcs_servers
from tests.azure_server import azure_server, connection_string
from tests.faulty_proxy import FaultyProxy, faulty_proxy
from tests.gcs_server import gcs_server
from tests.s3_server import CREDENTIALS, new_bucket, s3_server
from tests.unit.checkpoints.clouds_bench import PIECE as SMALL
from tests.unit.checkpoints.clouds_bench import Cloud, leave_nothing_for_later
from tests.unit.checkpoints.s3_bench import PIECE, Place


def file_uri(folder: Path) -> str:
    return (folder / "a run").as_uri()


def s3_uri(folder: Path) -> str:
    return f"s3://{new_bucket()}/some folder/a run"


def gs_uri(folder: Path) -> str:
    return f"gs://{gcs_servers.new_bucket()}/some folder/a run"


def az_uri(folder: Path) -> str:
    return f"az://{azure_servers.new_container()}/some folder/a run"


STORES: dict[str, Callable[[Path], str]] = {"file": file_uri, "s3": s3_uri, "gs": gs_uri, "az": az_uri}


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an S3 that boto3 uses in this test."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": s3_url}.items():
        monkeypatch.setenv(name, value)
    return s3_url


@pytest.fixture(scope="session")
def gcs_url() -> Iterator[str]:
    with gcs_server() as url:
        yield url


@pytest.fixture
def gs(gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a Google Cloud Storage that is used in this test."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_url)
    return gcs_url


@pytest.fixture(scope="session")
def azure_url() -> Iterator[str]:
    with azure_server() as url:
        yield url


@pytest.fixture
def az(azure_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an Azure Blob Storage that is used in this test."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(azure_url))
    return azure_url


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 store uploads in the smallest pieces that S3 takes."""
    monkeypatch.setattr(upload, "PIECE", PIECE)


@pytest.fixture
def place(s3: str) -> Iterator[Place]:
    """A bucket of this test."""
    place = Place(s3)
    yield place
    place.client.close()


@pytest.fixture
def s3_store(place: Place) -> Iterator[S3Store]:
    """A store in that bucket."""
    store = S3Store(f"s3://{place.bucket}/run")
    leave_nothing_for_later(store)
    yield store
    store.close()


@pytest.fixture
def checkpoints(s3_store: S3Store) -> Checkpoints:
    """Those of the first owner, in that store."""
    return Checkpoints(s3_store, fence=1, keep=2)


@pytest.fixture
def proxy(s3_url: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """In front of the server, for stores whose first request comes after this."""
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that botocore would have waited before trying again; it does not."""
    pauses: list[float] = []

    class NoTime:
        sleep = staticmethod(pauses.append)

    monkeypatch.setattr("botocore.endpoint.time", NoTime)
    return pauses


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tries of a request."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest, gs: str, az: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """One of the two, in front of it a proxy."""
    monkeypatch.setattr(upload, "PIECE", SMALL)
    is_google = request.param == "gs"
    uri = f"gs://{gcs_servers.new_bucket()}/run" if is_google else f"az://{azure_servers.new_container()}/run"
    with faulty_proxy(gs if is_google else az) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(proxy.url))
        yield Cloud(request.param, proxy, uri)
    gc.collect()  # The clients leave the connection of an answer that is an error to it.


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, s3: str, gs: str, az: str) -> Iterator[CheckpointStore]:
    store = open_store(STORES[request.param](tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    yield store
    store.close()
    gc.collect()  # Azure's client leaves the connection of an answer that is an error to it.
    assert set(os.listdir("/proc/self/fd")) == before, "a file was left open"
