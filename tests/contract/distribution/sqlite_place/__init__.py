"""A place whose documents are the rows of a database; its launchers are processes of this machine."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import Conflict, FailureKind
from elastic_runtime.run.headline import headline
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.folder import read_lines, write_document
from elastic_training.clusters.local import kill_session, process_lives, read_starter, start_launcher
from elastic_training.clusters.place import PolledPlace, Scale, in_thread
from elastic_training.clusters.types import LogLines, RunSummary

TABLE = "CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, document TEXT, version INTEGER)"


def open_cluster(rest: str | None) -> Cluster:
    """What ``cluster="sqlite"`` means, or ``cluster="sqlite/NAME"``."""
    return Cluster(SqlitePlace(Path(tempfile.gettempdir()) / (rest or "sqlite-place"), sys.executable))


class SqlitePlace(PolledPlace):
    """A database, and beside it a folder for each launcher, whose files ``elastic_runtime.run.rundir`` names.

    Args:
        folder: of both; created when missing.
        python: has ``elastic-runtime[horovod]``.
    """

    times = Times(claim=90.0, delete=60.0, delete_order=30.0, creation=5.0, pause=0.05)
    poll = 0.05

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._python = python

    @property
    def where(self) -> str:
        return f"in {self._folder}"

    async def plan(self, spec: RunSpec) -> str:
        return f"{spec.workers.start} processes, each with {spec.workers.slots} ranks: {' '.join(spec.command)}"

    # The store. A row's version is the condition for changing it.

    @in_thread
    def read(self, name: str) -> RunDocument | None:
        with self._database() as database:
            row = database.execute("SELECT document, version FROM runs WHERE name = ?", [name]).fetchone()
        return row and _document(*row)

    @in_thread
    def list(self) -> Iterable[RunSummary]:
        with self._database() as database:
            rows = database.execute("SELECT document, version FROM runs").fetchall()
        found = [_document(*row) for row in rows]
        return [each.summary(headline(self._observe(each).status)) for each in found if each.complete]

    @in_thread
    def create(self, spec: RunSpec, owner: str) -> RunDocument:
        now = utc_now()
        made = RunDocument(spec, owner, created=now, renewed=now, complete=False, version=1)
        try:
            with self._database() as database:
                database.execute("INSERT INTO runs VALUES (?, ?, ?)", [spec.name, _text(made), made.version])
        except sqlite3.IntegrityError:
            raise Conflict(f"there is a run {spec.name} {self.where}") from None
        run = self._run(made)
        run.create(spec, owner)
        start_launcher(self._python, run)
        return self._write(made, replace(made, complete=True))

    @in_thread
    def change(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        changed, run = self._write(found, wanted), self._run(found)
        write_document(run, found, changed)  # What the launcher wants to know of it.
        return changed

    @in_thread
    def remove(self, found: RunDocument, *, forced: bool) -> bool:
        run = self._run(found)
        if self._alive(run):
            self._write(found, replace(found, going=True))  # From now on nobody adopts it.
            run.ask_to_end("it is removed")
            if forced and (starter := read_starter(run)):
                kill_session(starter)
            return False
        shutil.rmtree(run.path, ignore_errors=True)
        with self._database() as database:
            database.execute("DELETE FROM runs WHERE name = ? AND version = ?", [found.ref.name, found.version])
        return True

    def _write(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        wanted = replace(wanted, version=found.version + 1)
        update = "UPDATE runs SET document = ?, version = ? WHERE name = ? AND version = ?"
        with self._database() as database:
            new, old = [_text(wanted), wanted.version], [found.ref.name, found.version]
            if not database.execute(update, new + old).rowcount:
                raise Conflict(f"the run {found.ref.name} has been changed since")
        return wanted

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        database = sqlite3.connect(self._folder / "runs.sqlite", timeout=30.0)
        try:
            with database:  # One transaction.
                database.execute(TABLE)
                yield database
        finally:
            database.close()

    # What is seen.

    @in_thread
    def observe(self, found: RunDocument) -> Observed:
        return self._observe(found)

    def _observe(self, found: RunDocument) -> Observed:
        run, spec = self._run(found), found.spec
        alive = self._alive(run)  # Before the status: what a launcher that has ended wrote last is there then.
        status = run.read_status() or Status(spec.name, spec.uid, Phase.PENDING, "it is starting", found.created)
        if not alive and not status.phase.final:
            kind, reason = FailureKind.LAUNCHER_LOST, "the launcher is gone without a word"
            status = replace(status, phase=Phase.FAILED, failure=kind, reason=reason, world_size=0)
        return Observed(status, launcher=alive)

    @in_thread
    def read_log(self, found: RunDocument, cursor: str, *, ended: bool) -> LogLines:
        lines, offset = read_lines(self._run(found).log, int(cursor), to_the_end=ended)
        return LogLines(lines, str(offset))

    # The workers.

    @in_thread
    def scale(self, name: str) -> Scale:
        with self._database() as database:
            row = database.execute("SELECT document, version FROM runs WHERE name = ?", [name]).fetchone()
        return Scale(self._run(_document(*row)).read_size()) if row else Scale(0)

    @in_thread
    def resize(self, found: RunDocument, scale: Scale, workers: int) -> None:
        run = self._run(found)
        if run.read_size() != scale.workers:
            raise Conflict(f"the size of {found.ref.name} has been changed since")
        run.write_size(workers)

    @in_thread
    def reclaim(self, found: RunDocument, worker: str, grace: timedelta) -> bool:
        self._run(found).write_notice(worker, ReclaimNotice("drill", utc_now() + grace))
        return True

    def _run(self, found: RunDocument) -> RunDir:
        return RunDir(self._folder / f"{found.ref.name}-{found.ref.uid}")

    @staticmethod
    def _alive(run: RunDir) -> bool:
        starter = read_starter(run)
        return starter is not None and process_lives(starter)


def _document(text: str, version: int) -> RunDocument:
    return replace(from_json(RunDocument, text), version=version)


def _text(document: RunDocument) -> str:
    return to_json(replace(document, version=None))
