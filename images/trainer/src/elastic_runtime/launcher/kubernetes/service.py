"""A launcher's life in its pod: into leadership, through the run, and out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

from elastic_runtime import __version__
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import (
    Conflict,
    FailureKind,
    InvalidDocument,
    InvalidSettings,
    MissingRight,
    OwnershipLost,
    RetryableError,
    RunNotFound,
)
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.launcher.kubernetes.join_tokens import RootTokens
from elastic_runtime.launcher.kubernetes.leadership import NO_DOOR, Door, Leadership, fenced, read_spec, take_over
from elastic_runtime.launcher.kubernetes.platform import KubernetesPlatform
from elastic_runtime.launcher.kubernetes.settings import LauncherSettings
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.net.certificates import LAUNCHER, Authority
from elastic_runtime.pool.pods.objects import KEEPER_VARIABLE
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.join import pin_of
from elastic_runtime.run.runobjects import COMPLETE, SCRIPTS_KEY
from elastic_runtime.run.shipment import with_content
from elastic_runtime.run.spec import MAX_PACKED, RunSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)
T = TypeVar("T")

OUTAGE_TIMEOUT = 300.0
"""Seconds for which an API server that does not answer is asked again, before there is anything to do without it."""
RIGHTS_TIMEOUT = 15.0
"""The same for one that refuses: right after its start it knows no rights yet."""
CREATION_TIMEOUT = 120.0
"""Seconds that the creator has to create the rest of the run; one that takes longer has died half way."""
PAUSE = 1.0
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True)
class Begun:
    """State of a launcher in leadership."""

    spec: RunSpec
    root: Object
    leadership: Leadership
    previous: Status | None
    """Last status of the launcher before it."""


async def serve(client: Client, settings: LauncherSettings, taken: asyncio.Event, output: TextIO) -> Status:
    """Run the run to its end, or until another launcher has to go on.

    Args:
        client: of the run's namespace.
        settings: which run, and who we are.
        taken: set once this pod is being taken.
        output: where the run's log goes.

    Returns:
        The last status; final when the run is over.

    Raises:
        OwnershipLost: another launcher has the run, or will.
        RunNotFound: there is no such run any more.
        MissingRight, InvalidSettings, InvalidDocument: it cannot be run, not by another launcher either.
        RetryableError: the API server did not answer.
    """
    begun = await unless(taken, begin(client, settings))
    if begun.spec.pool and settings.pool is None:
        problem = f"the run has workers of pool {begun.spec.pool.name}, and this variable is not set"
        raise InvalidSettings(KEEPER_VARIABLE, problem, "Use the Job that the operator makes")
    platform = KubernetesPlatform(client, begun.spec, begun.root, begun.leadership, taken, settings.pool)
    if begun.spec.join:
        authority, term = Authority.read(settings.tls), begun.leadership.term.number
        tokens = RootTokens(platform.join_tokens, term)
        platform.joining = Joining(begun.spec, authority, settings.tls, tokens, __version__, term=term)
    await unless(taken, with_retries(platform.fill))
    if begun.previous and begun.previous.phase.final:
        log.info("the run has ended already: %s", begun.previous.phase)
        status = begun.previous
    else:
        launcher = Launcher(
            fenced(begun.spec, begun.leadership.term),
            platform,
            OutputLog(output, begun.spec.log_limit),
            settings.tls,
            settings.address,
            settings.port,
            begun.previous,
            own_image=settings.own_image,
        )
        status = await launcher.run()
    if status.failure is FailureKind.ABANDONED:
        await platform.abandon()
    return status


async def begin(client: Client, settings: LauncherSettings) -> Begun:
    """Read the run, and enter into leadership. Raises as :func:`serve`."""
    spec, root = await with_retries(lambda: read_spec(client, settings.run, settings.uid))
    spec = with_scripts(spec, settings.tls / SCRIPTS_KEY)
    await whole(client, root)
    door = door_of(settings) if spec.join else NO_DOOR
    leadership, previous = await with_retries(lambda: take_over(client, spec, settings.pod_uid, utc_now, door))
    return Begun(spec, root, leadership, previous)


def door_of(settings: LauncherSettings) -> Door:
    """Where machines join this launcher. Raises InvalidDocument where its certificate cannot be read."""
    try:
        certificate = ssl.PEM_cert_to_DER_cert((settings.tls / f"{LAUNCHER}.crt").read_text())
    except (OSError, ValueError) as error:
        raise InvalidDocument(f"the launcher's certificate cannot be read: {error}") from error
    return Door(settings.address, pin_of(certificate).hex())


def with_scripts(spec: RunSpec, file: Path) -> RunSpec:
    """The spec with the files that came with the run, which are kept in ``file``. Raises InvalidDocument."""
    if spec.scripts is None:
        return spec
    try:
        with file.open("rb") as stream:
            compressed = stream.read(2 * MAX_PACKED)
    except OSError as error:
        raise InvalidDocument(f"the files that came with the run cannot be read: {error}") from error
    return replace(spec, scripts=with_content(spec.scripts, compressed))


async def whole(client: Client, root: Object) -> None:
    """Wait until all objects of the run are there.

    Raises:
        OwnershipLost: they are not after a long time. The root is deleted then: nobody else would.
    """
    name, uid, loop = root.name, root.uid, asyncio.get_running_loop()
    begun = loop.time()
    while COMPLETE not in root.annotations:
        if loop.time() - begun > CREATION_TIMEOUT:
            with contextlib.suppress(Conflict):  # Or somebody goes on with it this very moment.
                await client.delete(CONFIG_MAPS, name, uid=uid, version=root.version, propagation="Foreground")
                raise OwnershipLost(f"the creator of {name} has died half way; what there is of it is deleted")
        await asyncio.sleep(PAUSE)
        root = await with_retries(lambda: client.get(CONFIG_MAPS, name))
        if root.uid != uid:
            raise OwnershipLost(f"the run {name} has been replaced by another one")


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result once the API server gives one. Raise as ``call`` after the time limit of its error."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        try:
            return await call()
        except RunNotFound:
            raise
        except (RetryableError, MissingRight) as error:
            max_wait = RIGHTS_TIMEOUT if isinstance(error, MissingRight) else OUTAGE_TIMEOUT
            if loop.time() - begun > max_wait:
                raise
            log.info("not yet: %s", printable(error, LONG))
        await asyncio.sleep(PAUSE)


async def unless(taken: asyncio.Event, coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, unless this pod is taken first. Raises OwnershipLost then, or as ``coroutine``."""
    doing, waiting = asyncio.create_task(coroutine), asyncio.create_task(taken.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise OwnershipLost("this launcher's pod is being taken, before it has begun")
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
