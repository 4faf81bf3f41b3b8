"""Reading and changing the root of a run.

Every change is conditional on nobody having changed the root since it was read (uid and resourceVersion).
"""

from __future__ import annotations

from elastic_runtime.errors import Conflict
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.documents import root
from elastic_training.clusters.place import checked
from elastic_training.clusters.types import RunRef


async def find(client: Client, name: str) -> RunDocument | None:
    """The run of this name; None when there is none, or only a ConfigMap of somebody else's."""
    thing = await client.find(CONFIG_MAPS, name)
    return root.document(thing) if thing is not None and root.of_run(thing) else None


async def read(client: Client, ref: RunRef) -> RunDocument:
    """Read the root of this incarnation. Raise RunNotFound if it does not exist or is being deleted."""
    return checked(await find(client, ref.name), ref)


async def change(client: Client, found: RunDocument, wanted: RunDocument) -> RunDocument:
    """Set what differs, of the root exactly as it was read. Raises Conflict when it has changed since."""
    version: root.RootVersion = found.version
    metadata = {
        "uid": version.uid,
        "resourceVersion": version.resource_version,
        "annotations": root.difference(found, wanted),
    }
    return root.document(await client.patch(CONFIG_MAPS, found.spec.name, {"metadata": metadata}))


async def change_or_confirm(client: Client, found: RunDocument, wanted: RunDocument) -> RunDocument:
    """Change as :func:`change`, if no other process changes the same: a Conflict is a lost answer or a removal."""
    try:
        return await change(client, found, wanted)
    except Conflict:
        present = await read(client, found.ref)
        return present if present == wanted else await change(client, present, wanted)
