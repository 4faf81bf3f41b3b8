"""A bucket as somebody else sees it, and small checkpoints in it, for the tests of the S3 store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint
from tests.s3_server import new_bucket, s3_client

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PIECE = 5 << 20
"""Bytes: the least that S3 takes."""
LARGE = 2 * PIECE + 5
"""Bytes: three pieces, the last a small one."""


class Place:
    """A bucket as somebody else sees it."""

    def __init__(self, url: str) -> None:
        self.bucket = new_bucket()
        self.client = s3_client(url)

    def keys(self) -> list[str]:
        return sorted(each["Key"] for each in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ()))

    def uploads(self) -> list[Any]:
        return list(self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ()))

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)


def write(checkpoints: Checkpoints, step: int, content: bytes | None = None) -> StoredCheckpoint:
    def model(stream: PartStream) -> None:
        stream.write(f"model of step {step}".encode() if content is None else content)

    stored = checkpoints.write(step, NOON + timedelta(seconds=step), {"model.pt": model})
    assert stored is not None
    checkpoints.retire(stored)
    return stored


def read_model(stored: StoredCheckpoint) -> bytes:
    with stored.open_part("model.pt") as stream:
        return stream.read()


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    found = checkpoints.newest(read_model, lambda uri, reason: skipped.append((uri, reason)))
    return (None if found is None else found[0].manifest.step), skipped
