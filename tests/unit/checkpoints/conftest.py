"""An S3 for the tests of the stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import CREDENTIALS, s3_server


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
