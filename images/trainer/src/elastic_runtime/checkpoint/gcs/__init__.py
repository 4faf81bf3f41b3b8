"""``gs://bucket/prefix``: Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.checkpoint.gcs.bucket import KEY_VARIABLE, GcsBucket
from elastic_runtime.checkpoint.objects.store import ObjectStore

__all__ = ["KEY_VARIABLE", "GcsStore"]


class GcsStore(ObjectStore):
    """The bucket has to be there.

    Args:
        uri: checked by :func:`~elastic_runtime.checkpoint.store.open_store`.
        credentials: variables that go before those of this process.
    """

    def __init__(self, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        super().__init__(uri, GcsBucket(bucket, uri, credentials), prefix)
