"""Google Cloud Storage's requests, of its JSON API (cloud.google.com/storage/docs/json_api/v1).

By hand, over a session of google-auth: gcsfs has no conditions on generations in its interface, reads answers whole
however long they are, and runs on an event loop that cannot open a connection while the interpreter ends, which is when
a rank that leaves writes its last checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote, urlsplit

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
    error_text,
)
from elastic_runtime.errors import ElasticError, InvalidSettings, StoreUnavailable
from elastic_runtime.printable import printable
from elastic_runtime.retry import RetryPolicy

__all__ = ["KEY_VARIABLE", "GcsBucket"]

_SERVER = "https://storage.googleapis.com"
_LONGEST_ANSWER = 16 << 20
"""Bytes of an answer in JSON."""
_LONGEST_MESSAGE = 64 << 10
_RIGHTS = "storage.objects.create, .get, .list and .delete on the bucket, as roles/storage.objectUser has them"
_SLOWER = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})
"""Reasons of a 403 that pass."""
_PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses of answers after which a request is sent again, whatever it asks for: what it has done is told by its
generation."""
_PAUSES = RetryPolicy(first=0.5, longest=4.0, jitter=True)
_REQUEST = {"stream": True, "allow_redirects": False}  # another host would be shown the token
_RESUME, _CANCELLED = 308, 499
"""Statuses of an upload that is not complete, and of a canceled one."""
KEY_VARIABLE = "ELASTIC_TRAINING_GCS_KEY"
"""Environment: a key of a service account, as JSON. Without it Google's default credentials are used."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GcsBucket(Bucket):
    """A bucket of Google Cloud Storage. Versions are generations.

    Args:
        name: of the bucket.
        uri: for messages.
        credentials: variables that go before those of this process: :data:`KEY_VARIABLE`, ``STORAGE_EMULATOR_HOST``.
    """

    senders = 1  # The pieces of a resumable upload come one after the other.
    no_version = "1"
    conditions = ("the condition ifGenerationMatch=0", "the condition ifGenerationMatch")

    def __init__(self, name: str, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.uri = uri
        self._variables = {**os.environ, **(credentials or {})}
        host = self._variables.get("STORAGE_EMULATOR_HOST") or _SERVER
        self._server = (host if "://" in host else f"http://{host}").rstrip("/")
        self._objects = f"{self._server}/storage/v1/b/{quote(name, safe='')}/o"
        self._uploads = f"{self._server}/upload/storage/v1/b/{quote(name, safe='')}/o"
        self._sent: dict[str, int] = {}
        """Bytes by upload."""
        self._making = threading.Lock()

    @cached_property
    def _session(self) -> Any:
        with self._translated("connecting"):
            return new_session(self.uri, self._variables)

    @override
    def close(self) -> None:
        with self._making:
            session = self.__dict__.pop("_session", None)
        if session is not None:
            session.close()

    @override
    def get(self, key: str, most: int) -> tuple[bytes, str]:
        with self._asked(f"reading {key}", "GET", self._url(key), params={"alt": "media"}) as answer:
            return answer.raw.read(most + 1), str(int(answer.headers["x-goog-generation"]))

    @override
    def size(self, key: str) -> int:
        with self._translated(f"reading {key}"):
            # Where it is 0, Google's own testbench leaves it away.
            return int(self._json(f"reading {key}", self._url(key), {"fields": "size"})[0].get("size", 0))

    @override
    def read(self, key: str, start: int, stop: int, take: Callable[[bytes], None]) -> None:
        asked = {"Range": f"bytes={start}-{stop - 1}"}
        with self._asked(f"reading {key}", "GET", self._url(key), params={"alt": "media"}, headers=asked) as answer:
            if answer.headers.get("Content-Length") != str(stop - start):
                raise StoreUnavailable(f"{self.uri}, reading {key}: the server does not send what it was asked for")
            while start < stop:
                data = answer.raw.read(min(TAKEN, stop - start))
                if not data:
                    raise StoreUnavailable(f"{self.uri}, reading {key}: the server closed the connection")
                take(data)
                start += len(data)

    @override
    def put(self, key: str, body: bytes | bytearray, *, version: str | None = None, new: bool = False) -> None:
        params = {"uploadType": "media", "name": key}
        if new or version is not None:
            params["ifGenerationMatch"] = "0" if new else str(version)
        with self._asked(f"writing {key}", "POST", self._uploads, params=params, data=bytes(body)):
            pass

    @override
    def delete(self, key: str) -> None:
        try:
            with self._asked(f"deleting {key}", "DELETE", self._url(key)):
                pass
        except Missing:
            return

    @override
    def objects(self, prefix: str) -> list[Listed]:
        found = []
        with self._translated(f"listing {prefix}"):
            for each, now in self._listed(prefix, "items", fields="items(name,updated),nextPageToken"):
                age = (now - datetime.fromisoformat(each["updated"])).total_seconds()
                found.append(Listed(str(each["name"]), age))
        return found

    @override
    def folders(self, prefix: str) -> list[str]:
        with self._translated(f"listing {prefix}"):
            listed = self._listed(prefix, "prefixes", fields="prefixes,nextPageToken", delimiter="/")
            found = [str(each) for each, _ in listed]
        return [name.removesuffix("/").rpartition("/")[2] for name in found]

    def _listed(self, prefix: str, what: str, **more: str) -> Iterator[tuple[Any, datetime]]:
        """Each of this kind, and when it was listed, by the server's clock; the server says how many are in a page."""
        found = ((each, now) for page, now in self._pages(prefix, **more) for each in page.get(what, ()))
        return itertools.islice(found, MOST_LISTED)

    def _pages(self, prefix: str, **more: str) -> Iterator[tuple[Any, datetime]]:
        params = {"prefix": prefix, "maxResults": str(PAGE), **more}
        for _ in range(MOST_LISTED // PAGE):
            page, now = self._json(f"listing {prefix}", self._objects, params)
            yield page, now
            if not page.get("nextPageToken"):
                return
            params["pageToken"] = str(page["nextPageToken"])

    @override
    def begin_upload(self, key: str) -> str:
        params = {"uploadType": "resumable", "name": key}
        with self._asked(f"writing {key}", "POST", self._uploads, params=params) as answer:
            upload = str(answer.headers["Location"])
        # Whoever is sent there is shown the token.
        if urlsplit(upload)[:2] != urlsplit(self._server)[:2]:
            raise StoreUnavailable(f"{self.uri}, writing {key}: the server names another one for it")
        self._sent[upload] = 0
        return upload

    @override
    def upload_piece(self, key: str, upload: str, number: int, body: bytes | bytearray, *, last: bool) -> None:
        start = self._sent[upload]
        stop = start + len(body)
        asked = {"Content-Range": f"bytes {start}-{stop - 1}/{stop if last else '*'}"}
        doing = f"writing piece {number} of {key}"
        with self._asked(doing, "PUT", upload, headers=asked, data=bytes(body)) as answer:
            kept = answer.headers.get("Range", "") if answer.status_code == _RESUME else f"bytes=0-{stop - 1}"
        if (answer.status_code == _RESUME) is last or kept != f"bytes=0-{stop - 1}":
            raise StoreUnavailable(f"{self.uri}, {doing}: the server has not kept all of it")
        self._sent[upload] = stop

    @override
    def end_upload(self, key: str, upload: str, pieces: list[Any]) -> None:  # its last piece has ended it
        self._sent.pop(upload, None)

    @override
    def abort_upload(self, key: str, upload: str) -> None:
        self._sent.pop(upload, None)
        with self._asked(f"giving up {key}", "DELETE", upload):
            pass

    @override
    def uploads(self, prefix: str) -> list[tuple[str, str]]:  # they cannot be listed
        """Return an empty list: Google deletes unfinished uploads after a week, and they cost nothing until then."""
        return []

    def _url(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _json(self, doing: str, url: str, params: Mapping[str, str]) -> tuple[Any, datetime]:
        with self._asked(doing, "GET", url, params=params) as answer:
            body = answer.raw.read(_LONGEST_ANSWER + 1)
            if len(body) > _LONGEST_ANSWER:
                raise StoreUnavailable(f"{self.uri}, {printable(doing)}: the answer has no end")
            found = json.loads(body)
            if not isinstance(found, dict):
                raise TypeError("no object")
            return found, parsedate_to_datetime(answer.headers["Date"])

    @contextmanager
    def _asked(self, doing: str, method: str, url: str, **more: Any) -> Iterator[Any]:
        """The answer, of which only the head was read. Raises Missing, Changed."""
        with self._translated(doing):
            with self._making:  # or several threads would make one each
                session = self._session
            more["headers"] = {"Accept-Encoding": "identity", **more.get("headers", {})}
            with self._tried(partial(session.request, method, url, **_REQUEST, **more)) as answer:
                if not (200 <= answer.status_code < 300 or answer.status_code in (_RESUME, _CANCELLED)):
                    raise self._refused(printable(doing), answer)
                yield answer

    @staticmethod
    def _tried(ask: Callable[..., Any]) -> Any:
        """The answer, after some tries. By hand: the client's own would log URLs, and those of uploads are a right."""
        from google.auth.exceptions import TransportError
        from requests import RequestException

        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = ask(timeout=(CONNECT_TIMEOUT, READ_TIMEOUT))
                if answer.status_code not in _PASSING or attempt == ATTEMPTS:
                    return answer
                answer.close()
            except (RequestException, TransportError):
                if attempt == ATTEMPTS:
                    raise
            time.sleep(_PAUSES.delay(attempt))
        raise AssertionError("unreachable: the last attempt ends it")

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
            from requests import RequestException
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise not_installed(self.uri) from error

        where = f"{self.uri}, {printable(doing)}"
        try:
            yield
        except (ElasticError, Missing, Changed):
            raise
        except (RequestException, HTTPError) as error:
            raise StoreUnavailable(f"{where}: {error_text(error)}") from None
        except GoogleAuthError as error:
            for_good = isinstance(error, DefaultCredentialsError)
            if for_good or (isinstance(error, RefreshError) and not error.retryable):
                remedy = (
                    f"Give the workers credentials: workload identity, GOOGLE_APPLICATION_CREDENTIALS, {KEY_VARIABLE}"
                )
                raise InvalidSettings("checkpoint", f"{where}: {type(error).__name__}", remedy) from None
            raise StoreUnavailable(f"{where}: {error_text(error)}") from None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            problem = f"the server answers what Google Cloud Storage does not ({type(error).__name__})"
            raise StoreUnavailable(f"{where}: {problem}") from None

    def _refused(self, doing: str, answer: Any) -> Exception:
        status = answer.status_code
        message, reason = _words(answer.raw.read(_LONGEST_MESSAGE))
        where = f"{self.uri}, {doing}: {message} ({reason or 'HTTP status'} {status})"
        no_bucket = status == 404 and "bucket" in message.lower() and "object" not in message.lower()
        if no_bucket or (status == 404 and doing.startswith("listing")):
            return InvalidSettings("checkpoint", where, "Create the bucket, or write the name of one that exists")
        if status in (404, 410):
            return Missing(doing)
        if status == 412:
            return Changed(doing)
        if status in (401, 403) and reason not in _SLOWER:
            return InvalidSettings("checkpoint", where, f"Give the workers' credentials {_RIGHTS}")
        return StoreUnavailable(where)


def _words(body: bytes) -> tuple[str, str]:
    """Return the message and the reason of a refusal."""
    try:
        error = json.loads(body)["error"]
        return printable(str(error["message"])), printable(str(error["errors"][0]["reason"]), 60)
    except (LookupError, TypeError, ValueError, RecursionError):
        return printable(body.decode(errors="replace")), ""


# A session with Google: who we are.


def new_session(uri: str, variables: Mapping[str, str]) -> Any:
    """A session of requests, whose tokens are renewed.

    Args:
        uri: for messages.
        variables: environment.

    Raises:
        InvalidSettings: google-auth is not installed, or the key is none.
        google.auth.exceptions.GoogleAuthError: there are no credentials.
    """
    try:
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise not_installed(uri) from error

    # It hands the timeouts of a request on to that for its token.
    session = AuthorizedSession(_credentials(uri, variables))
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS + 2))
    return session


def not_installed(uri: str) -> InvalidSettings:
    """The error for a library that is missing."""
    remedy = "Install elastic-runtime[gcs] where the ranks run"
    return InvalidSettings("checkpoint", f"{uri} needs google-auth and requests, of which one is not installed", remedy)


def _credentials(uri: str, variables: Mapping[str, str]) -> Any:
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    if text := variables.get(KEY_VARIABLE):
        return _of_key(uri, text)
    if variables.get("STORAGE_EMULATOR_HOST"):
        return AnonymousCredentials()
    found, _ = google.auth.default(scopes=[_SCOPE])
    return found


def _of_key(uri: str, text: str) -> Any:
    """Of the kinds that are a secret by themselves: others name files, servers, or programs that are run."""
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import credentials, service_account

    try:
        key = json.loads(text)
        if key["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(key, scopes=[_SCOPE])
        if key["type"] == "authorized_user":
            return credentials.Credentials.from_authorized_user_info(key, scopes=[_SCOPE])
    except (LookupError, TypeError, ValueError, RecursionError, GoogleAuthError):
        pass  # What it says may quote the key.
    problem = f"for {uri}, {KEY_VARIABLE} is not the key of a service account or user"
    raise InvalidSettings("checkpoint", problem, "Write the JSON as Google gave it")
