"""A client of one container: who we are, how often a request is tried.

Variables, as Azure's own tools and adlfs name them; the first that is there counts:

* ``AZURE_STORAGE_CONNECTION_STRING``;
* ``AZURE_STORAGE_ACCOUNT_KEY``, ``AZURE_STORAGE_SAS_TOKEN``, or what azure-identity finds (``AZURE_CLIENT_ID`` …,
  workload identity, managed identity), with ``AZURE_STORAGE_ACCOUNT_NAME`` or ``AZURE_STORAGE_SERVICE_ENDPOINT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_runtime.checkpoint.objects.bucket import ATTEMPTS, CONNECT_TIMEOUT, READ_TIMEOUT
from elastic_runtime.errors import InvalidSettings

NEEDED = "azure-storage-blob and azure-identity"
CHUNK = 4 << 20
"""Bytes of one answer: the client reads each whole before it hands it on."""
_ONE_REQUEST = 64 << 20
"""Bytes up to which an object is written by one request."""


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


_VARIABLES = ("CONNECTION_STRING", "SERVICE_ENDPOINT", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN")
