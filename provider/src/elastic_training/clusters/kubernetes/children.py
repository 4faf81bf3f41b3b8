"""What a root owns, a run's or a pool's, created so that an answer that was lost, or another creator, does no harm."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from elastic_runtime.errors import Conflict, PermanentError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.errors import AlreadyExists
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    JOBS,
    NETWORK_POLICIES,
    REPLICA_SETS,
    SECRETS,
    Manifest,
    kind_of,
)
from elastic_runtime.net import certificates

_ORDER = (NETWORK_POLICIES, DISRUPTION_BUDGETS, JOBS, REPLICA_SETS)


async def create_children(
    client: Client, first: Iterable[Manifest], rest: Callable[[str], Iterable[Manifest]], owner: str
) -> None:
    """Create all objects of a root that is there.

    Args:
        client: of their namespace.
        first: those that need nothing, a Service among them; each names the root as its owner.
        rest: returns the others, by that Service's address.
        owner: what owns them, in words: ``run``.

    Raises:
        Conflict: the root is not the one that they name any more.
        PermanentError: one of that name is there, and not of this root.
        ElasticError: the server refuses.
    """
    answers = [await _create_child(client, each, owner) for each in first]
    address = next(answer.spec["clusterIP"] for answer in answers if answer.raw["kind"] == "Service")
    for manifest in _in_order(await asyncio.to_thread(rest, address)):
        await _create_child(client, manifest, owner)


def _in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return objects in the order of creation: the launcher before its workers, which would wait for it forever."""
    return sorted(manifests, key=lambda manifest: _ORDER.index(kind_of(manifest)))


async def _create_child(client: Client, manifest: Manifest, owner: str) -> Object:
    kind, name, root = kind_of(manifest), manifest["metadata"]["name"], manifest["metadata"]["ownerReferences"][0]
    try:
        return await client.create(kind, manifest)
    except AlreadyExists:
        if kind == SECRETS:  # Which Airflow may make and not read. No pod has seen it yet.
            if (await client.get(CONFIG_MAPS, root["name"])).uid != root["uid"]:
                raise Conflict(
                    f"the ConfigMap {root['name']} in namespace {client.namespace} was made anew meanwhile, by "
                    "somebody else. Try again"
                ) from None
            await client.delete(kind, name)
            return await client.create(kind, manifest)
        there = await client.get(kind, name)
        if root["uid"] in there.owners:
            return there  # The answer to an earlier attempt was lost.
        raise PermanentError(
            f"{kind.plural} {name} in namespace {client.namespace} is there and belongs to no {owner}: somebody has "
            f"made it, or kept it from being deleted with its {owner}. Delete it"
        ) from None


def certificate_files(validity: timedelta = certificates.VALIDITY, *, signs: bool = False) -> dict[str, bytes]:
    """Return contents of :func:`elastic_runtime.net.certificates.create`'s files by name.

    Args:
        validity: from now on.
        signs: with the authority's key, for a launcher that signs those of machines that join.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tls"
        authority = certificates.create(place, validity=validity)
        if signs:
            authority.write_key(place)
        return {path.name: path.read_bytes() for path in place.iterdir()}
