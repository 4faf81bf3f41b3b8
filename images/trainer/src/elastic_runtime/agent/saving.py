"""What the ranks of a worker leave in a folder of its agent, on its way into the checkpoint store.

A file is saved when nobody writes to it any more, so that a rank that is killed loses nothing: its timeline is over
with its process, or with the next world's; a profile appears under its name when it is whole. TensorBoard's events are
saved again whenever there are more. All of it in a thread, a pass at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.agent.work_folder import new_folder
from elastic_runtime.checkpoint import rights
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import ClusterUnavailable, ElasticError, FenceTaken, InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.protocol.plausible import TRACES as MOST_TOLD
from elastic_runtime.protocol.wire import SaveTraces, TracesSaved
from elastic_runtime.run.observe import PROFILE, TENSORBOARD, TIMELINE_SAMPLES, TRACES, ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.tracing.timeline import Mark
from elastic_runtime.tracing.traces import (
    FOLDER,
    LARGEST,
    TENSORBOARD_FOLDER,
    Marks,
    has_pieces,
    packed,
    piece_name,
    profile_name,
    retire,
    timeline_name,
)

log = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two passes."""
SAVE_TIMEOUT = 20.0
"""Seconds for the last pass of a worker that goes."""
MERGING = 60.0
"""Seconds for the merge of the timeline."""
MOST_FILES = 1000
"""In the folder; of more, those that are looked at are any."""
_TIMELINE, _BEGIN, _EVENTS, _PROFILE = "timeline.", ".begin", "events.out.tfevents.", ".pt.trace.json.gz"
_LONGEST_BEGIN = 200
_CHUNK = 1 << 20
_Write = Callable[[str], AbstractContextManager[BinaryIO]]


class Saving:
    """Save the files of a worker's ranks into the checkpoint store.

    Args:
        observe: what is asked for.
        checkpoint: of the run.
        within: where to make the folder.
        variables: what a store may be told by, beside this process' own: the run's environment.
        running: names of the ranks that run, as Horovod's hosts are called.
    """

    def __init__(
        self,
        observe: ObserveSpec,
        checkpoint: CheckpointSpec,
        within: Path,
        variables: Mapping[str, str],
        running: Callable[[], Sequence[str]],
    ) -> None:
        self._observe, self._checkpoint, self._running = observe, checkpoint, running
        self._variables = {**os.environ, **variables}
        self.folder = new_folder("traces-", within)
        self._saved: dict[str, int] = {}
        """Bytes that were saved of each file that stays."""
        self._names: list[str] = []
        self._turn = asyncio.Lock()
        self._is_refused = False
        """The store is another run's that has the same fence."""
        self._retired = False
        """Whether this agent has looked for what is too old."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make ranks write the requested traces into the folder."""
        told = {TRACES: str(self.folder)}
        if self._observe.timeline:
            name = TIMELINE_SAMPLES if self._observe.sampled else "HOROVOD_TIMELINE"
            told[name] = str(self.folder / "timeline.json")
        if self._observe.profile:
            told[PROFILE] = f"{self._observe.profile.first}:{self._observe.profile.steps}"
        if self._observe.tensorboard:
            told[TENSORBOARD] = "1"
        return told

    @classmethod
    def of(cls, spec: RunSpec, within: Path, ranks: Ranks) -> Saving | None:
        """For that run, if it wants any of this, and there is a place for it."""
        if not spec.observe.saves or spec.checkpoint is None:
            return None
        try:
            return cls(spec.observe, spec.checkpoint, within, spec.environment, lambda: ranks.running)
        except ClusterUnavailable as error:
            log.warning("nothing is observed here: %s", printable(error))
            return None

    async def obey(self, order: SaveTraces, send: Callable[[TracesSaved], None]) -> None:
        """Do it, and say what was done."""
        files = (await self.merge(order.marks),) if order.merge else await self.save()
        send(TracesSaved(tuple(filter(None, files))[:MOST_TOLD]))

    async def watch(self) -> None:
        """Save files at intervals, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.save()

    async def save(self) -> tuple[str, ...]:
        """What is over by now. Returns the names of all that was saved, ever; a store that is away is a warning."""
        async with self._turn:
            running = frozenset(self._running())
            try:
                if not self._is_refused:
                    await asyncio.to_thread(self._pass, running)
            except FenceTaken as error:
                self._is_refused = True
                log.warning("traces are not saved: %s", printable(error))
            except (ElasticError, OSError) as error:
                log.warning("traces are not saved now: %s", printable(error))
            return tuple(self._names)

    async def merge(self, marks: Sequence[Mark]) -> str | None:
        """Merge all generations' timelines, in a process of its own; the name of the merged one, if there is one."""
        if not self._observe.timeline or self._is_refused:
            return None
        try:
            if not await asyncio.to_thread(self._has_pieces):
                return None
        except ElasticError as error:
            log.warning("the timeline is not merged: %s", printable(error))
            return None
        fence = self._checkpoint.fence
        words = ("-m", "elastic_runtime.tracing.traces", self._checkpoint.uri, str(fence))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=self._variables, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(MERGING):
                _, errors = await process.communicate(to_json(Marks(tuple(marks))).encode())
        except TimeoutError:
            log.warning("the timeline was not merged within %.0f s", MERGING)
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if errors and not self._observe.sampled:
            log.warning("%s", printable(errors.decode(errors="replace"), 1000))
        return timeline_name(fence) if process.returncode == 0 else None

    async def close(self) -> None:
        """A last pass, and the folder goes."""
        try:
            async with asyncio.timeout(SAVE_TIMEOUT):
                await self.save()
        except TimeoutError:
            log.warning("traces were not all saved within %.0f s", SAVE_TIMEOUT)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _pass(self, running: frozenset[str]) -> None:
        with os.scandir(self.folder) as entries:
            found = sorted(entry.name for _, entry in zip(range(MOST_FILES), entries, strict=False))
        newest = _newest(found)
        due = [name for name in found if _due(name, newest, running)]
        if not due:
            return
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with closing(self._store) as store:
                store.claim_beside(self._checkpoint.fence, self._checkpoint.owner)
                for name in due:
                    try:
                        self._save(store.write_file, name, folder)
                    except InvalidDocument as error:
                        log.warning("%s is not saved: %s", printable(name), printable(error))
                        self._forget(name)
                self._retire(store)
        finally:
            os.close(folder)

    @cached_property
    def _store(self) -> CheckpointStore:
        return open_store(self._checkpoint.uri, self._variables)

    def _has_pieces(self) -> bool:
        with closing(self._store) as store:
            if not has_pieces(store, self._checkpoint.fence):
                return False
            store.claim_beside(self._checkpoint.fence, self._checkpoint.owner)
            return True

    def _retire(self, store: CheckpointStore) -> None:
        if self._retired:
            return
        self._retired = True
        try:
            retire(store, self._checkpoint.fence)
        except ElasticError as error:
            log.warning("old traces stay for now: %s", printable(error))

    def _save(self, write: _Write, name: str, folder: int) -> None:
        """One file. Raises InvalidDocument for what no rank of ours leaves."""
        try:
            source = os.fdopen(rights.open_file(name, within=folder), "rb")
        except OSError as error:
            raise InvalidDocument(f"it cannot be read: {error.strerror}") from error
        with source:
            size = min(os.fstat(source.fileno()).st_size, LARGEST)
            if name.startswith(_EVENTS):
                if size > self._saved.get(name, 0):
                    self._write(write, f"{TENSORBOARD_FOLDER}/{name}", source, size)
                    self._saved[name] = size
                return
            if name.endswith(_PROFILE):
                kept = profile_name(self._checkpoint.fence, name.removesuffix(_PROFILE) + ".json.gz")
                self._write(write, kept, source, size)
            else:
                kept = self._piece_name(name, folder)
                self._write(write, kept, source, size, pack=True)
        self._forget(name)
        if kept.startswith(f"{FOLDER}/profile-"):
            self._names.append(kept)

    def _piece_name(self, name: str, folder: int) -> str:
        try:
            with os.fdopen(rights.open_file(name.removesuffix(".json") + _BEGIN, within=folder), "rb") as stream:
                begin = from_json(dict[str, int], stream.read(_LONGEST_BEGIN))
        except OSError as error:
            raise InvalidDocument(f"when it begins cannot be read: {error.strerror}") from error
        time, size = begin.get("time", 0), begin.get("size", 0)
        if not (0 < time < 10**16 and 0 < size < 10**6):
            raise InvalidDocument("when it begins is not said")
        return piece_name(self._checkpoint.fence, time, size, name.removesuffix(".json").removeprefix(_TIMELINE))

    @staticmethod
    def _write(write: _Write, name: str, source: BinaryIO, size: int, *, pack: bool = False) -> None:
        with write(name) as target, packed(target) if pack else nullcontext(target) as stream:
            left = size
            while left > 0 and (chunk := source.read(min(left, _CHUNK))):
                stream.write(chunk)
                left -= len(chunk)

    def _forget(self, name: str) -> None:
        """What is saved, or cannot be, and is not looked at again."""
        for each in (name, name.removesuffix(".json") + _BEGIN if name.startswith(_TIMELINE) else name):
            (self.folder / each).unlink(missing_ok=True)


def _due(name: str, newest: Mapping[str, int], running: frozenset[str]) -> bool:
    """Whether nobody writes to it any more."""
    if name.startswith(_TIMELINE) and name.endswith(".json"):
        host, number = _place(name.removesuffix(".json"))
        return host not in running or number < newest.get(host, -1)
    return name.endswith(_PROFILE) or name.startswith(_EVENTS)


def _newest(found: Sequence[str]) -> dict[str, int]:
    """The number of the timeline that each host has begun last."""
    begun = (name.removesuffix(_BEGIN) for name in found if name.startswith(_TIMELINE) and name.endswith(_BEGIN))
    return dict(sorted(map(_place, begun)))


def _place(name: str) -> tuple[str, int]:
    """Host and number of a timeline; a name that is none of ours has no number that a later one follows."""
    host, _, number = name.removeprefix(_TIMELINE).rpartition(".")
    return host, int(number) if number.isdecimal() else sys.maxsize
