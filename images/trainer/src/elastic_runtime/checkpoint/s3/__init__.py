"""``s3://bucket/prefix``: S3, or any server that speaks its protocol and knows conditional writes."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.checkpoint.objects.store import ObjectStore
from elastic_runtime.checkpoint.s3.bucket import S3Bucket


class S3Store(ObjectStore):
    """The bucket has to be there.

    Args:
        uri: checked by :func:`~elastic_runtime.checkpoint.store.open_store`.
        credentials: variables as boto3 reads them; None: what it finds by itself.
    """

    def __init__(self, uri: str, credentials: Mapping[str, str] | None = None) -> None:
        # By hand, since these URIs know no escapes: %20 is three characters of a key.
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        super().__init__(uri, S3Bucket(bucket, uri, credentials), prefix)
