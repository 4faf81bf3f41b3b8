"""A session with Google: who we are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from elastic_runtime.checkpoint.objects.bucket import CONNECTIONS
from elastic_runtime.errors import InvalidSettings

KEY_VARIABLE = "ELASTIC_TRAINING_GCS_KEY"
"""Environment: a key of a service account, as JSON. Without it Google's default credentials are used."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


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
