"""``az://container/prefix`` and ``abfs://container@account.dfs.core.windows.net/prefix``: Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.checkpoint.azure.bucket import AzureBucket
from elastic_runtime.checkpoint.objects.store import ObjectStore

__all__ = ["AzureStore"]


class AzureStore(ObjectStore):
    """The container has to be there.

    Args:
        uri: checked by :func:`~elastic_runtime.checkpoint.store.open_store`.
        credentials: variables that go before those of this process.
    """

    def __init__(self, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        where, _, prefix = uri.partition("://")[2].partition("/")
        container, _, host = where.partition("@")
        super().__init__(uri, AzureBucket(container, host.partition(".")[0], uri, credentials), prefix)
