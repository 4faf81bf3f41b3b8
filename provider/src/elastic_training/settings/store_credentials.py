"""Credentials of a checkpoint store, from an Airflow connection, as the variables in which the store looks for them.

They are read in ``execute``, by the worker, handed to the place where the run is created, and kept nowhere else.
Whoever looks into a store on Airflow's side (``elastic_runtime.checkpoint.store.open_store``) gives it the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_runtime.errors import InvalidSettings
from elastic_training.redaction.masking import mask
from elastic_training.settings.templating import is_template

FIELD = "checkpoint_conn_id"
_IDENTITY = (
    "or leave checkpoint_conn_id out and give the workers an identity of their own (Pods(worker_service_account=...))"
)
_PLAIN = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_REGION",
        "AWS_ENDPOINT_URL_S3",
        "AZURE_CLIENT_ID",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_SERVICE_ENDPOINT",
        "AZURE_TENANT_ID",
    }
)
"""Variables that are not secret, logins among them: masked, a login such as ``airflow`` would blacken all pages."""
_LONGEST_KEY = 64 << 10
"""Bytes of a key file, and of its JSON."""
_KEY_TYPES = ("service_account", "authorized_user")
"""Of Google's key files those that are a secret by themselves; others name files, servers or programs to be asked."""


@dataclass(frozen=True, slots=True)
class StoreCredentials:
    """Credentials of a store in a connection."""

    variables: Mapping[str, str] = field(repr=False)
    """Environment of the ranks. What belongs together is set together, empty where the connection has none, so that
    nothing of another origin is mixed in."""
    expiring: bool = False
    """Whether they are temporary. Nobody renews them for a run that goes on."""


def check_store_connection(uri: object, conn_id: object) -> None:
    """Check a store's connection as far as it is known at parse. Raise InvalidSettings."""
    if conn_id is None or is_template(conn_id):
        return
    if not isinstance(conn_id, str) or not conn_id:
        problem = f"a {type(conn_id).__name__} is not the id of a connection" if conn_id else "it is empty"
        raise InvalidSettings(FIELD, problem, 'Write "aws_default", or leave it out')
    if uri and isinstance(uri, str) and not is_template(uri):
        _kind(uri)


def store_credentials(uri: str | None, conn_id: str) -> StoreCredentials:
    """Ask Airflow; blocks. What is secret is masked in all that this process logs from now on.

    Args:
        uri: of the store.
        conn_id: of the connection: of type aws for ``s3://``, google_cloud_platform for ``gs://``, wasb for ``az://``
            and ``abfs://``.

    Raises:
        InvalidSettings: there is no such connection, it is of another type, or it has no credentials.
    """
    if not uri:
        raise InvalidSettings(
            FIELD,
            "it is for the store of checkpoint_uri, which is not set",
            'Write checkpoint_uri="s3://bucket/runs" as well',
        )
    types, read = _kind(uri)
    connection = _asked(conn_id)
    if connection.conn_type not in types:
        problem = f"the connection {conn_id!r} is of type {connection.conn_type!r}, and {uri!r} needs {types[0]!r}"
        raise InvalidSettings(FIELD, problem, f"Name a connection of type {types[0]}")
    found = read(connection, _extra(connection))
    mask(_secrets(found.variables))
    return found


def _kind(uri: str) -> tuple[tuple[str, ...], Callable[[Any, Mapping[str, Any]], StoreCredentials]]:
    scheme = urlsplit(uri).scheme
    if scheme not in _KINDS:
        problem = f"{scheme}:// takes no credentials from a connection"
        raise InvalidSettings(FIELD, problem, f"Leave it out; it is for {', '.join(f'{each}://' for each in _KINDS)}")
    return _KINDS[scheme]


def _asked(conn_id: str) -> Any:
    from elastic_training.airflow.sdk import AirflowNotFoundException, BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except (AirflowNotFoundException, PermissionError) as error:
        problem = f"Airflow connection {conn_id!r} is not defined, or this task may not read it ({error})"
        raise InvalidSettings(FIELD, problem, f"Add one, {_IDENTITY}") from None


def _extra(connection: Any) -> Mapping[str, Any]:
    """With the prefixes of old forms left away."""
    prefix = f"extra__{connection.conn_type}__"
    return {name.removeprefix(prefix): value for name, value in connection.extra_dejson.items() if value}


def _secrets(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        if name in _PLAIN:
            continue
        yield value
        if value.startswith("{"):  # A key file: what is secret in it may be shown alone.
            yield from (each for each in json.loads(value).values() if isinstance(each, str) and len(each) > 40)


def _none(connection: Any, what: str) -> InvalidSettings:
    return InvalidSettings(FIELD, f"the connection {connection.conn_id!r} has no {what}", f"Add it, {_IDENTITY}")


def _aws(connection: Any, extra: Mapping[str, Any]) -> StoreCredentials:
    """As the amazon provider reads them; which is asked itself for what is more than a key."""
    region = extra.get("region_name")
    if more := next((name for name in _BY_HOOK if name in extra), None):
        key, secret, token, region = _by_hook(connection.conn_id, more)
    else:
        key = connection.login or extra.get("aws_access_key_id")
        secret = connection.password or extra.get("aws_secret_access_key")
        token = extra.get("aws_session_token")
    if not key or not secret:
        raise _none(connection, "access key (login) and secret (password)")
    services = extra.get("service_config")
    of_s3 = services.get("s3") if isinstance(services, Mapping) else None
    endpoint = (of_s3.get("endpoint_url") if isinstance(of_s3, Mapping) else None) or extra.get("endpoint_url")
    variables = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token or ""}
    given = {"AWS_REGION": region, "AWS_ENDPOINT_URL_S3": endpoint}
    return _made(variables | {name: value for name, value in given.items() if value}, expiring=bool(token))


_BY_HOOK = ("role_arn", "profile_name", "assume_role_method", "assume_role_with_web_identity_federation")


def _by_hook(conn_id: str, more: str) -> tuple[str | None, str | None, str | None, str | None]:
    try:
        hooks = import_module("airflow.providers.amazon.aws.hooks.base_aws")
    except ImportError:
        problem = f"the connection {conn_id!r} has {more}, which the amazon provider reads, and it is not installed"
        remedy = f"Install apache-airflow-providers-amazon, {_IDENTITY}"
        raise InvalidSettings(FIELD, problem, remedy) from None
    from botocore.exceptions import BotoCoreError, ClientError

    from elastic_training.airflow.sdk import AirflowException

    try:
        hook = hooks.AwsBaseHook(aws_conn_id=conn_id, client_type="s3")
        found = hook.get_credentials()
        return found.access_key, found.secret_key, found.token, hook.region_name
    except (AirflowException, BotoCoreError, ClientError, ValueError) as error:
        problem = f"the amazon provider gets no credentials from the connection {conn_id!r} ({type(error).__name__})"
        raise InvalidSettings(FIELD, problem, f"Test the connection, {_IDENTITY}") from None


def _google(connection: Any, extra: Mapping[str, Any]) -> StoreCredentials:
    """A key file, of which the JSON stands in the connection, or the path."""
    from elastic_runtime.checkpoint.gcs import KEY_VARIABLE

    text = extra.get("keyfile_dict")
    if text is None and (path := extra.get("key_path")):
        try:
            with Path(str(path)).open(encoding="utf-8") as file:
                text = file.read(_LONGEST_KEY + 1)
        except (OSError, UnicodeDecodeError) as error:
            problem = f"the key_path of the connection {connection.conn_id!r} cannot be read ({type(error).__name__})"
            raise InvalidSettings(FIELD, problem, "Have it on every worker, or write keyfile_dict") from None
    if text is None:
        raise _none(connection, "key (keyfile_dict or key_path)")
    try:
        key = text if isinstance(text, Mapping) else json.loads(text)
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, Mapping) or key.get("type") not in _KEY_TYPES or len(str(text)) > _LONGEST_KEY:
        problem = f"the key of the connection {connection.conn_id!r} is not the JSON of a service account or user"
        raise InvalidSettings(FIELD, problem, f"Write keyfile_dict as Google gave it, {_IDENTITY}")
    return _made({KEY_VARIABLE: json.dumps(dict(key))})


def _azure(connection: Any, extra: Mapping[str, Any]) -> StoreCredentials:
    """As the provider microsoft.azure reads them: connection string, SAS, service principal, or account key."""
    host, login, password = connection.host or "", connection.login or "", connection.password or ""
    tenant = extra.get("tenant_id")
    sas = extra.get("sas_token")
    found = dict.fromkeys(_OF_AZURE, "")
    if whole := extra.get("connection_string"):
        found["AZURE_STORAGE_CONNECTION_STRING"] = whole
        return _made(found)
    if "://" in host:
        found["AZURE_STORAGE_SERVICE_ENDPOINT"] = host
    else:
        # Where a tenant is named, the login is the application's.
        found["AZURE_STORAGE_ACCOUNT_NAME"] = host.partition(".")[0] or ("" if tenant else login)
    if sas:
        found["AZURE_STORAGE_SAS_TOKEN"] = sas
    elif tenant and login and password:
        found |= {"AZURE_TENANT_ID": tenant, "AZURE_CLIENT_ID": login, "AZURE_CLIENT_SECRET": password}
    elif password and not tenant:
        found["AZURE_STORAGE_ACCOUNT_KEY"] = password
    else:
        raise _none(connection, "connection_string, sas_token, account key (password), or tenant_id with login")
    return _made(found, expiring=bool(sas))


_OF_AZURE = (
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_SERVICE_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
)


def _made(variables: Mapping[str, Any], *, expiring: bool = False) -> StoreCredentials:
    for name, value in variables.items():
        if not isinstance(value, str) or "\0" in value:
            raise InvalidSettings(FIELD, f"the connection's value for {name} is not a string", "Write it as one")
    return StoreCredentials(dict(variables), expiring)


_KINDS = {
    "s3": (("aws",), _aws),
    "gs": (("google_cloud_platform",), _google),
    "az": (("wasb", "azure_blob_storage"), _azure),
    "abfs": (("wasb", "azure_blob_storage"), _azure),
}
"""Scheme: types of connections, and how they are read."""
