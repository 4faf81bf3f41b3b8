"""What the tests of the runtime share: an S3, and how many examples Hypothesis tries."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import examples
from tests.s3_server import CREDENTIALS, s3_server

examples.choose()
# Before torch is imported: its threads would wait for each other busily, with tensors as small as the tests'.
os.environ["OMP_NUM_THREADS"] = "1"


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
