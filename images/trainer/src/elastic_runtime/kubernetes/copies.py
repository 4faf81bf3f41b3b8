"""Copies of a run's objects, kept by watches, that say when there is no news."""

from __future__ import annotations

import logging
from collections.abc import Callable

from elastic_runtime.errors import ElasticError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import Kind, V
from elastic_runtime.printable import LONG, printable

log = logging.getLogger(__name__)


def watched_copy(
    client: Client,
    kind: Kind[V],
    changed: Callable[[], None],
    back: Callable[[], None] = lambda: None,
    **which: str,
) -> Reflector[V]:
    """Return a copy of objects that logs when the API server cannot be asked for them, and when it can be again.

    Args:
        client: of their namespace.
        kind: of the objects.
        changed: called when one of them has changed, and when there is no news, or again.
        back: called before that when the API server answers again.
        which: ``labels`` or ``fields`` that select them.
    """

    def troubled(error: ElasticError | None) -> None:
        if error:
            log.warning("training goes on, but no news of %s: %s", kind.plural, printable(error, LONG))
        else:
            log.info("the API server answers again for %s", kind.plural)
            back()
        changed()

    return Reflector(client, kind, changed=lambda _: changed(), troubled=troubled, **which)
