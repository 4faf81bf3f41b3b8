"""Reading and changing the root of a run.

Every change is decided on what was read, and conditional on nobody having changed it since (uid and resourceVersion);
if somebody has, it is read and decided again. So two parties can neither both win, nor work on different incarnations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastic_runtime import runobjects
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text, to_json
from elastic_runtime.errors import ClusterUnavailable, Conflict, OwnershipLost, RunNotFound
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.document import NOBODY, StoredLogLease
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS
from elastic_training.clusters.kubernetes.root import Root

_TRIES = 20
"""How often a change is decided anew before this gives up. Others change a root about once a second."""

Annotations = Mapping[str, str | None]
"""To be set; None removes one."""


def lease() -> Annotations:
    """Renewed now."""
    return {runobjects.LEASE: time_to_text(utc_now())}


def leased_log(token: str, cursor: str) -> Annotations:
    """The log_lease, and the lease with it: who attends also waits."""
    watched = None if token == NOBODY else ""
    return {runobjects.LOG_LEASE: to_json(StoredLogLease(token, cursor)), runobjects.WATCHED: watched, **lease()}


def owned(owner: str, before: StoredLogLease | None) -> Annotations:
    """A new owner, whose predecessor's watcher finds out."""
    revoked = {} if before is None else leased_log(NOBODY, before.cursor)
    return {runobjects.OWNER: owner, **lease(), **revoked}


def read(api: Api, ref: RunRef) -> Root:
    """The root of this incarnation.

    Raises:
        RunNotFound: it is not there, is being deleted, or is another incarnation's.
    """
    found = Root(api.get(CONFIG_MAPS, runobjects.ObjectNames(ref.name).root))
    return checked(found, ref)


def checked(found: Root, ref: RunRef) -> Root:
    """The root, if it is of this incarnation and there to stay. Raises RunNotFound."""
    if found.ref != ref:
        raise RunNotFound(f"the run {ref.name} with uid {ref.uid} has been replaced by {found.ref.uid}")
    if found.going:
        raise RunNotFound(f"the run {ref.name} with uid {ref.uid} is being deleted")
    return found


def patch(api: Api, found: Root, annotations: Annotations) -> Root:
    """Set annotations of the root exactly as it was read. Raises Conflict when it has changed since."""
    metadata = {"uid": found.uid, "resourceVersion": found.version, "annotations": dict(annotations)}
    return Root(api.patch(CONFIG_MAPS, found.name, {"metadata": metadata}))


def change(api: Api, ref: RunRef, decide: Callable[[Root], Annotations | None], known: Root | None = None) -> Root:
    """Decide on annotations by what the root says, and set them.

    Args:
        api: of its namespace.
        ref: of the run.
        decide: may raise; None: nothing is to be set. Called again when somebody else was faster.
        known: the root as it was read lately; spares a request if it has not changed since.

    Returns:
        The root as it is now.

    Raises:
        RunNotFound: as :func:`read`.
        ClusterUnavailable: others were faster every time.
    """
    found = known
    for _ in range(_TRIES):
        current = read(api, ref) if found is None else found
        try:
            wanted = decide(current)
            return current if wanted is None else patch(api, current, wanted)
        except Conflict:
            found = None
        except OwnershipLost:
            if found is None:
                raise
            found = None  # What was known was old, perhaps.
    raise ClusterUnavailable(f"the root of {ref.name} is changed by others all the time")
