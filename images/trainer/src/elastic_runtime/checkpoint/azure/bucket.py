"""Azure Blob Storage's requests, by its own client, with its errors translated.

By the client that adlfs is built on, and not by adlfs: it has no conditions on ETags in its interface, and runs on an
event loop that cannot open a connection while the interpreter ends, which is when a rank that leaves writes its last
checkpoint.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Any

from typing_extensions import override

from elastic_runtime.checkpoint.objects.bucket import (
    ATTEMPTS,
    CONNECT_TIMEOUT,
    MOST_LISTED,
    PAGE,
    READ_TIMEOUT,
    Bucket,
    Changed,
    Listed,
    Missing,
    error_text,
)
from elastic_runtime.errors import ElasticError, InvalidSettings, StoreUnavailable
from elastic_runtime.printable import printable

_REMEDIES = {
    "ContainerNotFound": "Create the container, or write the name of one that exists",
    "ContainerDisabled": "Ask the owner of the storage account",
    "AccountIsDisabled": "Ask the owner of the storage account",
    "InvalidResourceName": "Write az://container/prefix",
    "AuthenticationFailed": "Give the workers a key, SAS or identity that the storage account knows",
    "InvalidAuthenticationInfo": "Give the workers a key, SAS or identity that the storage account knows",
}
"""Codes of answers that are the same for ever, and what to do."""
_RIGHTS = "Give the workers' identity the role Storage Blob Data Contributor on the container, or a SAS with rcwdl"
_NOT_THAT_LONG = 416
"""Status of an answer about bytes of an object that has none."""
_GONE = frozenset({"BlobNotFound", "ResourceNotFound", "InvalidBlockList", "InvalidBlobOrBlock"})
_CHANGED = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "UploadConflict"})
NEEDED = "azure-storage-blob and azure-identity"
CHUNK = 4 << 20
"""Bytes of one answer: the client reads each whole before it hands it on."""
_ONE_REQUEST = 64 << 20
"""Bytes up to which an object is written by one request."""
_VARIABLES = ("CONNECTION_STRING", "SERVICE_ENDPOINT", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN")


class AzureBucket(Bucket):
    """A container of Azure Blob Storage. Versions are ETags.

    Args:
        name: of the container.
        account: storage account; empty: the variables tell.
        uri: for messages.
        credentials: variables that go before those of this process; :mod:`~elastic_runtime.checkpoint.azure.bucket`
            has their names.
    """

    no_version = '"0x8D0000000000000"'
    conditions = ("the header If-None-Match", "the header If-Match")

    def __init__(self, name: str, account: str, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.uri = uri
        self._account = account
        self._variables = {**os.environ, **(credentials or {})}
        self._making = threading.Lock()

    @cached_property
    def _made(self) -> tuple[Any, Any]:
        return new_client(self.uri, self.name, self._account, self._variables)

    @property
    def _client(self) -> Any:
        with self._making:  # or several threads would make one each
            return self._made[0]

    @override
    def close(self) -> None:
        with self._making:
            made = self.__dict__.pop("_made", ())
        for each in made:
            if each is not None:
                each.close()

    @override
    def get(self, key: str, most: int) -> tuple[bytes, str]:
        with self._translated(f"reading {key}"):
            try:
                answer = self._asked(key, 0, most + 1)
                return b"".join(answer.chunks()), str(answer.properties.etag)
            except self._http_error as error:
                if error.status_code != _NOT_THAT_LONG:
                    raise
            return b"", str(self._client.get_blob_client(key).get_blob_properties().etag)

    @override
    def size(self, key: str) -> int:
        with self._translated(f"reading {key}"):
            return int(self._client.get_blob_client(key).get_blob_properties().size)

    @override
    def read(self, key: str, start: int, stop: int, take: Callable[[bytes], None]) -> None:
        with self._translated(f"reading {key}"):
            for data in self._asked(key, start, stop - start).chunks():
                if start + len(data) > stop:
                    raise StoreUnavailable(f"{self.uri}, reading {key}: the server does not send what it was asked for")
                take(data)
                start += len(data)
            if start < stop:
                raise StoreUnavailable(f"{self.uri}, reading {key}: the server closed the connection")

    @property
    def _http_error(self) -> Any:
        from azure.core.exceptions import HttpResponseError

        return HttpResponseError

    def _asked(self, key: str, start: int, size: int) -> Any:
        """The client reads the first piece at once, and each whole."""
        return self._client.download_blob(
            key, offset=start, length=size, max_concurrency=1, raw_response_hook=partial(self._measured, key, size)
        )

    def _measured(self, key: str, size: int, answer: Any) -> None:
        """Before its body is read."""
        response = answer.http_response
        length = response.headers.get("Content-Length") or ""
        if response.status_code < 300 and not (length.isdecimal() and int(length) <= min(size, CHUNK)):
            response.internal_response.close()  # of requests
            raise StoreUnavailable(f"{self.uri}, reading {key}: the server does not send what it was asked for")

    @override
    def put(self, key: str, body: bytes | bytearray, *, version: str | None = None, new: bool = False) -> None:
        with self._translated(f"writing {key}"):
            from azure.core import MatchConditions

            condition = {} if version is None else {"etag": version, "match_condition": MatchConditions.IfNotModified}
            self._client.upload_blob(key, bytes(body), overwrite=not new, max_concurrency=1, **condition)

    @override
    def delete(self, key: str) -> None:
        try:
            with self._translated(f"deleting {key}"):
                self._client.delete_blob(key)
        except Missing:
            return

    @override
    def objects(self, prefix: str) -> list[Listed]:
        found = []
        for each, now in self._listed("list_blobs", prefix):
            found.append(Listed(str(each.name), (now - each.last_modified).total_seconds()))
        return found

    @override
    def folders(self, prefix: str) -> list[str]:
        names = [str(each.name) for each, _ in self._listed("walk_blobs", prefix, delimiter="/")]
        return [name.removesuffix("/").rpartition("/")[2] for name in names if name.endswith("/")]

    @override
    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Return blobs that have only blocks. Azure deletes these after a week."""
        listed = self._listed("list_blobs", prefix, include=["uncommittedblobs"])
        return [(str(each.name), "") for each, _ in listed if each.etag is None]

    def _listed(self, method: str, prefix: str, **more: Any) -> Iterator[tuple[Any, datetime]]:
        """What is listed, and when, by the server's clock."""
        now = datetime.now(UTC)

        def dated(answer: Any) -> None:
            nonlocal now
            now = parsedate_to_datetime(answer.http_response.headers["Date"])

        with self._translated(f"listing {prefix}"):
            answers = getattr(self._client, method)(
                name_starts_with=prefix, results_per_page=PAGE, raw_response_hook=dated, **more
            )
            pages = itertools.islice(answers.by_page(), MOST_LISTED // PAGE)
            # The server says how many it puts into one.
            for each in itertools.islice(itertools.chain.from_iterable(pages), MOST_LISTED):
                yield each, now

    @override
    def begin_upload(self, key: str) -> str:  # the first block begins it
        return secrets.token_hex(8)

    @override
    def upload_piece(self, key: str, upload: str, number: int, body: bytes | bytearray, *, last: bool) -> str:
        block = b64encode(f"{upload}-{number:06}".encode()).decode()
        with self._translated(f"writing piece {number} of {key}"):
            self._client.get_blob_client(key).stage_block(block, bytes(body))
        return block

    @override
    def end_upload(self, key: str, upload: str, pieces: list[Any]) -> None:
        with self._translated(f"writing {key}"):
            from azure.storage.blob import BlobBlock

            self._client.get_blob_client(key).commit_block_list([BlobBlock(each) for each in pieces])

    @override
    def abort_upload(self, key: str, upload: str) -> None:
        """Delete the blob: Azure deletes blocks only with it."""
        self.put(key, b"")
        self.delete(key)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            from azure.core.exceptions import AzureError, HttpResponseError
        except ImportError as error:
            remedy = "Install elastic-runtime[azure] where the ranks run"
            problem = f"{self.uri} needs {NEEDED}, which is not installed"
            raise InvalidSettings("checkpoint", problem, remedy) from error
        where = f"{self.uri}, {printable(doing)}"
        try:
            yield
        except (ElasticError, Missing, Changed):
            raise
        except HttpResponseError as error:
            raise self._refused(printable(doing), where, error) from None
        except AzureError as error:
            raise StoreUnavailable(f"{where}: {error_text(error)}") from None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            problem = f"the server answers what Azure does not ({type(error).__name__})"
            raise StoreUnavailable(f"{where}: {problem}") from None

    def _refused(self, doing: str, where: str, error: Any) -> Exception:
        status = error.status_code
        code = getattr(error, "error_code", None) or ""
        code = printable(str(getattr(code, "value", code)), 60)  # The client knows some of them as an enumeration.
        if status is None:  # No answer: of credentials that were looked for, and not found.
            remedy = "Give the workers credentials: workload identity, or AZURE_STORAGE_CONNECTION_STRING"
            return InvalidSettings("checkpoint", f"{where}: {error_text(error)}", remedy)
        where = f"{where}: {code or type(error).__name__} (HTTP status {status})"
        if code in _REMEDIES:
            return InvalidSettings("checkpoint", where, _REMEDIES[code])
        if status == 404 or code in _GONE:
            return Missing(doing)
        if status == 412 or code in _CHANGED:
            return Changed(doing)
        if status in (401, 403):
            return InvalidSettings("checkpoint", where, _RIGHTS)
        return StoreUnavailable(where)


# A client of one container: who we are, how often a request is tried.
#
# Variables, as Azure's own tools and adlfs name them; the first that is there counts:
#
# * ``AZURE_STORAGE_CONNECTION_STRING``;
# * ``AZURE_STORAGE_ACCOUNT_KEY``, ``AZURE_STORAGE_SAS_TOKEN``, or what azure-identity finds (``AZURE_CLIENT_ID`` …,
#   workload identity, managed identity), with ``AZURE_STORAGE_ACCOUNT_NAME`` or ``AZURE_STORAGE_SERVICE_ENDPOINT``.


def new_client(uri: str, container: str, account: str, variables: Mapping[str, str]) -> tuple[Any, Any]:
    """A client of the container, and the credential that is to be closed with it, or None.

    Args:
        uri: for messages.
        container: its name.
        account: of the URI; empty: the variables tell.
        variables: environment.

    Raises:
        InvalidSettings: the libraries are missing, or nothing names the account.
    """
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential
        from azure.storage.blob import ContainerClient, ExponentialRetry
    except ImportError as error:
        remedy = "Install elastic-runtime[azure] where the ranks run"
        raise InvalidSettings("checkpoint", f"{uri} needs {NEEDED}, which is not installed", remedy) from error
    options = {
        "retry_policy": ExponentialRetry(
            initial_backoff=1, increment_base=2, retry_total=ATTEMPTS - 1, random_jitter_range=1
        ),
        "permit_redirects": False,  # Another host would be shown what is asked for, and with what right.
        "connection_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "max_single_put_size": _ONE_REQUEST,
        "max_single_get_size": CHUNK,
        "max_chunk_get_size": CHUNK,
    }
    given = {name: variables.get(f"AZURE_STORAGE_{name}", "") for name in _VARIABLES}
    account = account or given["ACCOUNT_NAME"]
    endpoint = given["SERVICE_ENDPOINT"] or (f"https://{account}.blob.core.windows.net" if account else "")
    if not (endpoint or given["CONNECTION_STRING"]):
        remedy = "Set AZURE_STORAGE_ACCOUNT_NAME, or write abfs://container@account.dfs.core.windows.net/prefix"
        raise InvalidSettings("checkpoint", f"nothing says which storage account {uri} is in", remedy)
    try:
        if given["CONNECTION_STRING"]:
            return ContainerClient.from_connection_string(given["CONNECTION_STRING"], container, **options), None
        credential: Any
        closing = None
        if given["ACCOUNT_KEY"]:
            credential = (
                {"account_name": account, "account_key": given["ACCOUNT_KEY"]} if account else given["ACCOUNT_KEY"]
            )
        elif given["SAS_TOKEN"]:
            credential = given["SAS_TOKEN"].removeprefix("?")
        elif variables.get("AZURE_CLIENT_SECRET"):
            of = (variables.get(f"AZURE_{name}", "") for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET"))
            credential = closing = ClientSecretCredential(*of)
        else:
            credential = closing = DefaultAzureCredential()
        return ContainerClient(endpoint, container, credential=credential, **options), closing
    except (ValueError, AttributeError):
        # Without what it says of it, which may quote it.
        problem = f"the credentials for {uri} cannot be read"
        raise InvalidSettings("checkpoint", problem, "Write them as Azure gave them") from None
