"""S3's requests, with the errors of botocore translated."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

from typing_extensions import override

from elastic_runtime.checkpoint.objects.bucket import (
    ATTEMPTS,
    CONNECT_TIMEOUT,
    CONNECTIONS,
    MOST_LISTED,
    PAGE,
    READ_TIMEOUT,
    TAKEN,
    Bucket,
    Changed,
    Listed,
    Missing,
)
from elastic_runtime.errors import ElasticError, InvalidSettings, StoreUnavailable
from elastic_runtime.printable import printable

_ATTEMPTS = {"mode": "standard", "total_max_attempts": ATTEMPTS}
"""Of each request; the pauses are drawn at random, up to 20 s. See botocore's guide to retries."""
_LONGEST_CODE = 60
"""Characters."""

_RIGHTS = "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload on the prefix and s3:ListBucket"
_REMEDIES = {
    "AccessDenied": f"Give the workers' credentials {_RIGHTS} on the bucket",
    "AllAccessDisabled": "Ask the owner of the bucket",
    "AuthorizationHeaderMalformed": "Set AWS_REGION to the region of the bucket",
    "IllegalLocationConstraintException": "Set AWS_REGION to the region of the bucket",
    "PermanentRedirect": "Set AWS_REGION to the region of the bucket",
    "InvalidAccessKeyId": "Give the workers credentials that the server knows (AWS_ACCESS_KEY_ID, or a role)",
    "SignatureDoesNotMatch": "Give the workers the secret that belongs to their access key (AWS_SECRET_ACCESS_KEY)",
    "InvalidBucketName": "Write s3://bucket/prefix",
    "NoSuchBucket": "Create the bucket, or write the name of one that exists",
    "NotImplemented": "Use a server that knows conditional writes, as AWS and today's MinIO do",
}
"""Codes of answers that are the same for ever, and what to do. Whatever is not here may pass."""
_ARGUMENTS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL_S3",
    "region_name": "AWS_REGION",
}
"""Of boto3.client, and the variable that says the same."""
_making_a_client = threading.Lock()


class S3Bucket(Bucket):
    """A bucket of S3 or of a compatible store.

    Endpoint, region and credentials are what boto3 finds: ``AWS_ENDPOINT_URL_S3``, ``AWS_REGION``, the instance's or
    the pod's role, and so on.

    Args:
        name: of the bucket.
        uri: for messages.
        credentials: variables that go before those of this process.
    """

    no_version = f'"{0:032}"'
    conditions = ("the header If-None-Match", "the header If-Match")

    def __init__(self, name: str, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.uri = uri
        self._credentials = credentials or {}

    @cached_property
    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            remedy = "Install elastic-runtime[s3] where the ranks run, or use file://"
            raise InvalidSettings("checkpoint", f"{self.uri} needs boto3, which is not installed", remedy) from error
        # What the user sets in the environment stays as it is: a Config would win over it.
        own = {"AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"}.intersection(os.environ)
        retries = {} if own else {"retries": _ATTEMPTS}
        config = Config(
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            **retries,
            max_pool_connections=CONNECTIONS + 2,
            tcp_keepalive=True,
        )
        given = {name: self._credentials.get(variable) or None for name, variable in _ARGUMENTS.items()}
        # boto3's default session, which a script may have set up; it must not make two clients at the same time.
        with self._translated("connecting"), _making_a_client:
            return boto3.client("s3", config=config, **given)

    @override
    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    @override
    def get(self, key: str, most: int) -> tuple[bytes, str]:
        with self._translated(f"reading {key}"):
            answer = self._client.get_object(Bucket=self.name, Key=key)
            with answer["Body"] as body:
                return body.read(most + 1), str(answer["ETag"])

    @override
    def size(self, key: str) -> int:
        with self._translated(f"reading {key}"):
            return int(self._client.head_object(Bucket=self.name, Key=key)["ContentLength"])

    @override
    def read(self, key: str, start: int, stop: int, take: Callable[[bytes], None]) -> None:
        with self._translated(f"reading {key}"):
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{stop - 1}")
            with answer["Body"] as body:
                if answer.get("ContentLength") != stop - start:
                    raise StoreUnavailable(f"{self.uri}, reading {key}: the server does not send what it was asked for")
                while start < stop:
                    data = body.read(min(TAKEN, stop - start))
                    if not data:
                        raise StoreUnavailable(f"{self.uri}, reading {key}: the server closed the connection")
                    take(data)
                    start += len(data)

    @override
    def put(self, key: str, body: bytes | bytearray, *, version: str | None = None, new: bool = False) -> None:
        condition = {"IfNoneMatch": "*"} if new else {} if version is None else {"IfMatch": version}
        with self._translated(f"writing {key}"):
            try:
                self._client.put_object(Bucket=self.name, Key=key, Body=body, **condition)
            except self._client.exceptions.NoSuchKey:  # what was to be replaced is gone
                raise Changed(key) from None

    @override
    def delete(self, key: str) -> None:
        with self._translated(f"deleting {key}"):
            self._client.delete_object(Bucket=self.name, Key=key)

    @override
    def objects(self, prefix: str) -> list[Listed]:
        found = []
        with self._translated(f"listing {prefix}"):
            for page in self._pages("list_objects_v2", prefix):
                now = _time_of(page)
                for each in page.get("Contents", ()):
                    found.append(Listed(each["Key"], (now - each["LastModified"]).total_seconds()))
        return found

    @override
    def folders(self, prefix: str) -> list[str]:
        pages = self._pages("list_objects_v2", prefix, Delimiter="/")
        found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
        return [name.removesuffix("/").rpartition("/")[2] for name in found]

    def _pages(self, operation: str, prefix: str, **more: str) -> Iterator[Any]:
        with self._translated(f"listing {prefix}"):
            pages = self._client.get_paginator(operation).paginate(Bucket=self.name, Prefix=prefix, **more)
            yield from itertools.islice(pages, MOST_LISTED // PAGE)

    @override
    def begin_upload(self, key: str) -> str:
        with self._translated(f"writing {key}"):
            # As s3transfer does: the pieces carry sums that botocore adds, and S3 wants to know of them before.
            sums = self._client.meta.config.request_checksum_calculation == "when_supported"
            algorithm = {"ChecksumAlgorithm": "CRC32"} if sums else {}
            return str(self._client.create_multipart_upload(Bucket=self.name, Key=key, **algorithm)["UploadId"])

    @override
    def upload_piece(
        self,
        key: str,
        upload: str,
        number: int,
        body: bytes | bytearray,
        *,
        last: bool,
    ) -> dict[str, Any]:
        with self._translated(f"writing piece {number} of {key}"):
            answer = self._client.upload_part(Bucket=self.name, Key=key, UploadId=upload, PartNumber=number, Body=body)
        sums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    @override
    def end_upload(self, key: str, upload: str, pieces: list[dict[str, Any]]) -> None:
        with self._translated(f"writing {key}"):
            self._client.complete_multipart_upload(
                Bucket=self.name, Key=key, UploadId=upload, MultipartUpload={"Parts": pieces}
            )

    @override
    def abort_upload(self, key: str, upload: str) -> None:
        with self._translated(f"giving up {key}"):
            self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)

    @override
    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        pages = self._pages("list_multipart_uploads", prefix)
        return [(each["Key"], each["UploadId"]) for page in pages for each in page.get("Uploads", ())]

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
        )

        doing = printable(doing)
        try:
            yield
        except ClientError as error:
            raise self._refused(doing, error.response) from error
        except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
            remedy = "Give the workers credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
            raise InvalidSettings("checkpoint", f"{self.uri}, {doing}: {printable(error)}", remedy) from error
        except (BotoCoreError, Boto3Error) as error:
            raise StoreUnavailable(f"{self.uri}, {doing}: {printable(error)}") from error
        except ElasticError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            problem = f"the server answers what S3 does not ({printable(repr(error))})"
            raise StoreUnavailable(f"{self.uri}, {doing}: {problem}") from error

    def _refused(self, doing: str, response: Any) -> Exception:
        code = printable(response.get("Error", {}).get("Code", ""), _LONGEST_CODE)
        message = printable(response.get("Error", {}).get("Message", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if code in ("NoSuchKey", "NoSuchUpload") or (status == 404 and code not in _REMEDIES):
            return Missing(doing)
        if code in ("PreconditionFailed", "ConditionalRequestConflict") or status == 412:
            return Changed(doing)
        # A HEAD has no body, so nothing but its status says why it was refused.
        remedy = _REMEDIES.get(code) or (_REMEDIES["AccessDenied"] if code == "403" else None)
        if remedy is not None:
            return InvalidSettings("checkpoint", f"{self.uri}, {doing}: {message} ({code})", remedy)
        return StoreUnavailable(f"{self.uri}, {doing}: {message} ({code}, HTTP status {status})")


def _time_of(page: Any) -> datetime:
    return parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
