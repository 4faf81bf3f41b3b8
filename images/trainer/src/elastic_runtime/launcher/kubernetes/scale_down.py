"""The end of a ReplicaSet's pods, once a run is over."""

from __future__ import annotations

import logging

from elastic_runtime.errors import ElasticError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.resources import REPLICA_SETS
from elastic_runtime.kubernetes.retry import UNTIL_BACK
from elastic_runtime.printable import LONG, printable
from elastic_runtime.retry import Retry

log = logging.getLogger(__name__)


async def scale_to_zero(client: Client, name: str) -> None:
    """Scale a ReplicaSet to nothing, however long the API server is away.

    Args:
        client: of its namespace.
        name: of the ReplicaSet.
    """
    retry = Retry(UNTIL_BACK)
    while True:
        try:
            await client.patch(REPLICA_SETS, name, {"spec": {"replicas": 0}}, "scale")
            return
        except RunNotFound:
            return
        except RetryableError as error:
            log.info("%s is not sent home yet: %s", name, printable(error, LONG))
        except ElasticError as error:
            log.error("%s stays until the run is deleted: %s", name, printable(error, LONG))
            return
        await retry.pause()
