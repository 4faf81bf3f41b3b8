"""Objects that a root owns, at an API server in memory. Real ones: test_claims.py and test_pools.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509

from elastic_runtime.errors import Conflict, PermanentError
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, REPLICA_SETS, SECRETS, SERVICES
from elastic_training.clusters.kubernetes.children import certificate_files, create_children
from elastic_training.clusters.kubernetes.manifests.objects import owned_by
from tests.unit.runtime.fake_kubernetes import NAMESPACE, FakePlace

ROOT = {"metadata": {"name": "root", "namespace": NAMESPACE, "uid": "uid-1"}}


def manifest(version: str, kind: str, name: str, uid: str = "uid-1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "ownerReferences": owned_by("root", uid)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def first(uid: str = "uid-1") -> list[dict[str, Any]]:
    return [
        manifest("v1", "Secret", "tls", uid, data={"of": uid}),
        manifest("v1", "Service", "head", uid, spec={"clusterIP": "10.96.0.7"}),
    ]


def rest(address: str) -> Iterator[dict[str, Any]]:
    """The launcher last, to see that it is made first."""
    yield manifest("apps/v1", "ReplicaSet", "workers", spec={"at": address})
    yield manifest("batch/v1", "Job", "launcher", spec={"at": address})


async def begun() -> FakePlace:
    place = FakePlace()
    await place.create(CONFIG_MAPS, ROOT)
    return place


async def create(place: FakePlace, uid: str = "uid-1") -> None:
    await create_children(place.api, first(uid), rest, "run")


def test_the_launcher_is_made_before_its_workers_and_all_know_the_address() -> None:
    async def main() -> None:
        await create(place := await begun())
        made = [(kind, thing["metadata"]["name"]) for _, kind, _, thing in place.history]
        assert made[1:] == [(SECRETS, "tls"), (SERVICES, "head"), (JOBS, "launcher"), (REPLICA_SETS, "workers")]
        assert (await place.api.get(JOBS, "launcher")).spec == {"at": "10.96.0.7"}

    asyncio.run(main())


def test_what_was_made_and_not_answered_is_taken_as_it_is_but_for_secrets() -> None:
    async def main() -> None:
        place = await begun()
        before = {(await place.create(SERVICES, first()[1])).uid}
        secret = (await place.create(SECRETS, first()[0])).uid
        await create(place)
        assert {(await place.api.get(SERVICES, "head")).uid} == before
        assert (await place.api.get(SECRETS, "tls")).uid != secret, "it has another key than the one at hand"

    asyncio.run(main())


def test_the_secret_of_a_root_that_was_made_anew_is_left_alone() -> None:
    async def main() -> None:
        place = await begun()
        await create(place)
        secret = (await place.api.get(SECRETS, "tls")).uid
        with pytest.raises(Conflict, match=r"ConfigMap root in namespace ns was made anew meanwhile, by somebody else"):
            await create(place, "uid-0")
        assert (await place.api.get(SECRETS, "tls")).uid == secret

    asyncio.run(main())


def test_what_somebody_else_has_made_is_not_taken() -> None:
    async def main() -> None:
        place = await begun()
        await place.create(JOBS, manifest("batch/v1", "Job", "launcher", "another"))
        with pytest.raises(PermanentError, match=r"jobs launcher in namespace ns is there and belongs to no run"):
            await create(place)

    asyncio.run(main())


@pytest.mark.parametrize("signs", [False, True])
def test_certificates_are_those_of_both_sides_and_the_authoritys_key_where_it_signs(signs: bool) -> None:
    files = certificate_files(timedelta(days=3), signs=signs)
    pairs = {f"{name}.{part}" for name in ("launcher", "agent") for part in ("crt", "key")}
    assert files.keys() == {"ca.crt", *pairs, *(["authority.key"] if signs else [])}
    read = x509.load_pem_x509_certificate(files["agent.crt"])
    assert timedelta(days=2) < read.not_valid_after_utc - read.not_valid_before_utc < timedelta(days=5)
