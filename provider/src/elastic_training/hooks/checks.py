"""Checks of a connection's test button: whether a training can run in its place."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from elastic_runtime.errors import ElasticError, InvalidSettings, PermanentError
from elastic_runtime.kubernetes.client import Client
from elastic_training.clusters.folder import private_folder
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.access import ask_once
from elastic_training.clusters.kubernetes.rights import Right, missing
from elastic_training.clusters.local import ROOT
from elastic_training.clusters.local_python import ALWAYS, FRAMEWORKS, HOROVOD, NEEDED, modules_of
from elastic_training.clusters.location import KUBERNETES, LOCAL, Location, RayName, SlurmName, SparkName
from elastic_training.clusters.ray import client_of
from elastic_training.clusters.registry import local_settings
from elastic_training.clusters.slurm import queue_over
from elastic_training.clusters.spark import check_driver
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.operators.checks import check_checkpoint_uri
from elastic_training.settings.store_credentials import store_credentials

TEST_TIMEOUT = 40.0
"""Seconds for all of it: somebody has pressed a button."""


async def check(location: Location) -> tuple[bool, str]:
    """Whether trainings can run there, and a message for people: what was found, or what is missing and the remedy.

    Raises nothing that a connection, a server or a folder can cause.
    """
    found: list[str] = []
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            if location.place == LOCAL:
                await _check_local(found)
            elif isinstance(location.jobs, SparkName):
                await in_daemon(_check_spark, location.jobs, location.pyspark or location.python, found)
            elif location.jobs is not None:
                await in_daemon(_check_jobs, location.jobs, found)
            else:
                await _check_kubernetes(location, found)
            await _check_checkpoints(location, found)
    except ElasticError as fault:
        return False, str(fault)
    except TimeoutError:
        before = f"; before that: {'; '.join(found)}" if found else ""
        return False, f"it took more than {TEST_TIMEOUT:g} s{before}. Is the server, or the store, reachable from here?"
    return True, "; ".join(found)


async def _check_kubernetes(location: Location, found: list[str]) -> None:
    access = await asyncio.to_thread(ask_once, location.kubernetes)
    namespace = location.namespace or access.namespace
    async with connection.client(access, namespace) as client:
        if lacking := await missing(client):
            raise PermanentError(
                f"the API server answers, and in namespace {namespace} these rights are missing: {_words(lacking)}. "
                "deploy/rbac.yaml of this project has the role; bind it to whom that connection logs in as"
            )
        await client.try_to_create(_probe(client))
    image = f"image {location.image}" if location.image else "no default image"
    found.append(f"the API server answers, with all rights in namespace {namespace}; {image}")


def _probe(client: Client) -> dict[str, object]:
    """Of what is tried, and not made: whether there is such a namespace is told by nothing that one may read."""
    metadata = {"generateName": "elastic-training-test-", "namespace": client.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _words(rights: list[Right]) -> str:
    """``create, get jobs.batch; get pods/log``."""
    verbs: dict[str, list[str]] = {}
    for group, resource, verb in rights:
        plural, slash, part = resource.partition("/")
        verbs.setdefault(f"{plural}{'.' if group else ''}{group}{slash}{part}", []).append(verb)
    return "; ".join(f"{', '.join(some)} {what}" for what, some in verbs.items())


async def _check_local(found: list[str]) -> None:
    root, python = local_settings()
    await in_daemon(_check_root, root)
    has = await in_daemon(modules_of, python, (*ALWAYS, *FRAMEWORKS, HOROVOD), TEST_TIMEOUT / 2)
    lacking = [name for name in ALWAYS if name not in has]
    if not set(FRAMEWORKS) & set(has):
        lacking.append(" or ".join(FRAMEWORKS))
    elif "torch" not in has and HOROVOD not in has:
        lacking.append(HOROVOD)
    if lacking:
        raise PermanentError(
            f"{python} has no {', '.join(lacking)}. Install {NEEDED} there, or name another "
            "interpreter in [elastic_training] local_python"
        )
    found.append(f"folder {root} is there and Airflow's alone; {python} has {', '.join(has)}")
    if HOROVOD not in has:
        found.append("it has no horovod, which ElasticHorovodOperator and @task.elastic_horovod need")


def _check_jobs(name: SlurmName | RayName, found: list[str]) -> None:
    private_folder(Path(name.folder), "cluster")
    if isinstance(name, RayName):
        system, jobs = "Ray", client_of(name.address)[0].jobs()
    else:
        system, jobs = "Slurm", queue_over(name.ssh).commands.jobs()
    found.append(
        f"folder {name.folder} is there and this user's alone; {system} answers, with {len(jobs)} jobs of runs"
    )


def _check_spark(name: SparkName, python: str | None, found: list[str]) -> None:
    private_folder(Path(name.folder), "cluster")
    driver = python or local_settings()[1]
    check_driver(name.master, driver)
    found.append(f"folder {name.folder} is there and this user's alone; {driver} has pyspark; the master answers")


def _check_root(root: Path) -> None:
    private_folder(root, ROOT)
    if not os.access(root, os.W_OK | os.X_OK):
        raise InvalidSettings(ROOT, f"{root} cannot be written to", "Make it mode 700")


async def _check_checkpoints(location: Location, found: list[str]) -> None:
    uri = location.checkpoint_uri
    if uri is None:
        found.append("no default place of checkpoints")
        return
    check_checkpoint_uri(uri)
    if location.place == KUBERNETES and uri.startswith("file:"):
        found.append(f"checkpoints go to {uri} in the pods, which cannot be looked at from here")
        return
    try:
        await in_daemon(_look_into, uri, location.checkpoint_conn_id)
    except ElasticError as error:
        if location.place == LOCAL or location.checkpoint_conn_id:  # Who trains there has no others.
            raise PermanentError(f"the checkpoints' prefix {uri} cannot be read: {error}") from None
        found.append(
            f"the checkpoints' prefix {uri} cannot be read from here ({error}): the pods must have access to it"
        )
    else:
        found.append(f"the checkpoints' prefix {uri} can be read")


def _look_into(uri: str, connection: str | None) -> None:
    from elastic_runtime.checkpoint.store import open_store

    credentials = store_credentials(uri, connection).variables if connection else None
    store = open_store(uri, credentials)
    try:
        store.names()
    finally:
        store.close()
