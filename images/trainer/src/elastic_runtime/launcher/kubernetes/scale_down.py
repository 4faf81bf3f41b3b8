"""What a launcher writes at the end of its run, however long the API server is away."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from elastic_runtime.errors import ElasticError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.resources import REPLICA_SETS
from elastic_runtime.kubernetes.retry import UNTIL_BACK
from elastic_runtime.printable import LONG, printable
from elastic_runtime.retry import Retry

log = logging.getLogger(__name__)


async def scale_to_zero(client: Client, name: str) -> None:
    """Scale a ReplicaSet to nothing.

    Args:
        client: of its namespace.
        name: of the ReplicaSet.
    """
    await written(lambda: client.patch(REPLICA_SETS, name, {"spec": {"replicas": 0}}, "scale"), name)


async def written(write: Callable[[], Awaitable[object]], what: str) -> None:
    """Write until the API server accepts it, refuses it, or has no such object any more.

    Args:
        write: one attempt.
        what: is to be 0, for the log.
    """
    retry = Retry(UNTIL_BACK)
    while True:
        try:
            await write()
            return
        except RunNotFound:
            return
        except RetryableError as error:
            log.info("%s is not 0 yet: %s", what, printable(error, LONG))
        except ElasticError as error:
            log.error("%s stays until the run is deleted: %s", what, printable(error, LONG))
            return
        await retry.pause()
