"""Reading and changing the root of a run.

Every change is conditional on nobody having changed the root since it was read (uid and resourceVersion).
"""

from __future__ import annotations

from elastic_runtime.errors import Conflict
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import root
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS
from elastic_training.clusters.place import checked


def find(api: Api, name: str) -> RunDocument | None:
    """The run of this name; None when there is none, or only a ConfigMap of somebody else's."""
    thing = api.find(CONFIG_MAPS, name)
    return root.document(thing) if thing is not None and root.of_run(thing) else None


def read(api: Api, ref: RunRef) -> RunDocument:
    """Of this incarnation. Raises RunNotFound when it is not there, or is being deleted."""
    return checked(find(api, ref.name), ref)


def change(api: Api, found: RunDocument, wanted: RunDocument) -> RunDocument:
    """Set what differs, of the root exactly as it was read. Raises Conflict when it has changed since."""
    version: root.RootVersion = found.version
    metadata = {
        "uid": version.uid,
        "resourceVersion": version.resource_version,
        "annotations": root.difference(found, wanted),
    }
    return root.document(api.patch(CONFIG_MAPS, found.spec.name, {"metadata": metadata}))


def insist(api: Api, found: RunDocument, wanted: RunDocument) -> RunDocument:
    """As :func:`change`, where nobody else changes the same: a Conflict is an answer that was lost, or a removal."""
    try:
        return change(api, found, wanted)
    except Conflict:
        present = read(api, found.ref)
        return present if present == wanted else change(api, present, wanted)
