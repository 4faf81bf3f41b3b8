"""The local cluster's meeting place: one folder per run, read and written by Airflow's side and the launcher's.

========================  ==========================  =====================================================
file                      written by                  meaning
========================  ==========================  =====================================================
``spec.json``             creator, once               the :class:`~elastic_runtime.run.spec.RunSpec`
``owner``                 creator or adopter          fencing: opaque text naming who owns the run
``size``                  anybody                     wanted workers, decimal
``lease``                 the trigger, by touching    time stamp: somebody still waits for this run
``watched``               the trigger                 exists once it has begun, until another owner adopts the run
``record.json``           Airflow's side              what else it notes; the launcher reads who asked for sizes
``cancel``                anybody, once               asks the launcher to end; holds the reason
``stacks``                anybody                     asks the ranks where they stand; another text each time
``notices/WORKER.json``   anybody                     a reclaim :class:`ReclaimNotice` for that worker's agent
``tokens/DIGEST``         Airflow's side              permission to join, until the time in it; the launcher removes it
``tls/``                  launcher                    the run's certificate authority and certificates
``scratch/``              launcher, agents            a folder of each worker with the files that came with the run
``launcher.json``         launcher                    :class:`LauncherProcess`: who to watch
``status.json``           launcher, atomically        the :class:`~elastic_runtime.run.status.Status`
``headline.json``         launcher, right after that  its :class:`~elastic_runtime.run.headline.Headline`
``log``                   launcher, appending         its own lines and every rank's output
``lock``                  launcher, ``flock``         held as long as it lives: proof of life without pids
========================  ==========================  =====================================================

On Kubernetes the same meet in ConfigMaps, annotations and the worker set's ``scale`` instead.
"""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from elastic_runtime.documents import from_json, parse_json, to_json, write_atomically
from elastic_runtime.errors import Conflict, ElasticError, InvalidDocument, RunNotFound
from elastic_runtime.run.headline import Headline, headline
from elastic_runtime.run.join import MAX_TOKENS, TOO_MANY
from elastic_runtime.run.locking import is_locked
from elastic_runtime.run.reading import LONGEST, read_bytes, read_start
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

_LONGEST_SIZE = 100
"""Bytes of the size that are read."""
_LONGEST_REASON, _LONGEST_OWNER, _LONGEST_HEADLINE = 16 << 10, 64 << 10, 1 << 20
"""Bytes of these that are read."""
_LONGEST_CERTIFICATE = 16 << 10
"""Bytes."""
_LONGEST_TIME = 64
"""Bytes of a token's end."""
_REQUEST = 64
"""Characters of a request that are read."""


@dataclass(frozen=True, slots=True)
class ReclaimNotice:
    """Word that a worker will be taken."""

    source: str
    """Who said so: ``file``, ``sigterm``, ``aws``, …"""
    deadline: datetime
    """When it will be gone at the latest."""
    punctual: bool = False
    """It is there until then, so that its ranks may train on for most of the time."""


@dataclass(frozen=True, slots=True)
class LauncherProcess:
    """The launcher of a run on this machine."""

    pid: int
    started: float
    """Its start time in clock ticks since boot, from ``/proc/PID/stat``: a pid alone may be somebody else's by now."""

    @classmethod
    def of(cls, pid: int) -> LauncherProcess:
        """A living process of this machine."""
        return cls(pid, process_stat(pid)[1])


def process_stat(pid: int) -> tuple[str, float]:
    """State and start time (clock ticks since boot) of a process: fields 3 and 22 of proc(5)'s ``stat``.

    Raises OSError when there is no such process.
    """
    # The second field, the program's name in parentheses, may hold spaces and parentheses itself.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return fields[0], float(fields[19])


class RunDir:
    """Paths of a run's folder, and atomic access to its documents. Holds nothing open.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        """Log of launcher and ranks: append-only UTF-8 lines."""
        self.tls = path / "tls"
        """Folder of the certificates that launcher and agents show each other."""
        self.scratch = path / "scratch"
        """Folder of the workers' folders. It exists only if files were shipped with the run."""
        self.tokens = path / "tokens"
        """Folder of the digests of tokens to join, made with the first of them."""
        self.notices = path / "notices"
        """Folder of preemption notices, a file for each worker."""
        self.lock = path / "lock"
        """File that the running launcher has locked."""
        self.lease = path / "lease"
        """File whose modification time is the last renewal of the lease."""
        self.watched = path / "watched"
        """File that exists once the run's present owner has begun to watch it."""
        self.cancel = path / "cancel"
        """File that exists once somebody has requested the end."""

    def create(self, spec: RunSpec, owner: str) -> None:
        """Lay the run down; the last file written makes it exist.

        Raises:
            FileExistsError: the folder is there already.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700)
        self.notices.mkdir()
        self.lease.touch()
        self.write_owner(owner)
        self.write_size(spec.workers.start)
        write_atomically(self.path / "spec.json", to_json(spec))

    def read_spec(self) -> RunSpec:
        """Read the run's spec. Raise RunNotFound or InvalidDocument."""
        return from_json(RunSpec, self._read("spec.json"))

    def read_owner(self) -> str:
        """Return the owner. Raise RunNotFound."""
        return self._read("owner", _LONGEST_OWNER)

    def write_owner(self, owner: str) -> None:
        """Take the run over, or confirm that it is ours."""
        write_atomically(self.path / "owner", owner)

    def read_size(self) -> int:
        """Wanted workers. Raises RunNotFound, or InvalidDocument."""
        size = self.asked_size()
        if isinstance(size, str):
            raise InvalidDocument(f"{self.path / 'size'} holds {size!r}, not a number of workers")
        return size

    def asked_size(self) -> int | str:
        """Wanted workers, or what stands there instead, as far as one would show it. Raises RunNotFound."""
        text = read_start(self.path / "size", _LONGEST_SIZE).decode(errors="replace").strip()
        return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text

    def requests(self) -> str | None:
        """JSON list of the requests for sizes, as Airflow's side has noted them; None: there are none to be read."""
        try:
            record = parse_json(self._read("record.json"))
        except (ElasticError, OSError):
            return None
        return json.dumps(record.get("requests")) if isinstance(record, dict) else None

    def write_size(self, workers: int) -> None:
        """Ask for so many workers; bounds are the caller's to check."""
        write_atomically(self.path / "size", str(workers))

    def read_status(self) -> Status | None:
        """None until the launcher has written the first. Raises InvalidDocument."""
        try:
            return from_json(Status, self._read("status.json"))
        except RunNotFound:
            if self.exists():
                return None
            raise

    def write_status(self, status: Status) -> None:
        """For the launcher alone. Whoever sees the headline finds a status that is at least as new."""
        write_atomically(self.path / "status.json", to_json(status))
        write_atomically(self.path / "headline.json", to_json(headline(status)))

    def read_headline(self) -> Headline:
        """Read the headline. Raise InvalidDocument, or RunNotFound before the launcher has written the first."""
        return from_json(Headline, self._read("headline.json", _LONGEST_HEADLINE))

    def read_launcher(self) -> LauncherProcess:
        """Read the launcher's process. Raise RunNotFound before it has started."""
        return from_json(LauncherProcess, self._read("launcher.json"))

    def write_launcher(self, launcher: LauncherProcess) -> None:
        """Record the launcher's process. Only the launcher may call it."""
        write_atomically(self.path / "launcher.json", to_json(launcher))

    def notice(self, worker: str) -> Path:
        """Return the path at which a preemption notice for this worker may appear."""
        return self.notices / f"{worker}.json"

    def write_notice(self, worker: str, notice: ReclaimNotice) -> None:
        """Send a preemption notice to a worker's agent. Raise InvalidDocument for a name that leads elsewhere."""
        if "/" in worker or "\0" in worker:
            raise InvalidDocument(f"{worker!r} is not the name of a worker")
        write_atomically(self.notice(worker), to_json(notice))

    def ask_to_end(self, reason: str) -> None:
        """Have the launcher end the run; harmless when repeated."""
        if self.exists() and not self.cancel.exists():
            write_atomically(self.cancel, reason)

    def ask_for_stacks(self, request: str) -> None:
        """Have the ranks write where they stand; ``request``: another text each time."""
        write_atomically(self.path / "stacks", request)

    def stacks_asked(self) -> str | None:
        """The last such request; None: there was none."""
        try:
            return read_start(self.path / "stacks", 4 * _REQUEST).decode(errors="replace")[:_REQUEST]
        except (RunNotFound, InvalidDocument):
            return None

    def launcher_certificate(self) -> bytes:
        """Return the launcher's certificate as DER. Raise RunNotFound or InvalidDocument."""
        text = self._read("tls/launcher.crt", _LONGEST_CERTIFICATE)
        try:
            return ssl.PEM_cert_to_DER_cert(text)
        except ValueError:
            raise InvalidDocument(f"{self.tls} holds no certificate of a launcher") from None

    def offer_token(self, digest: str, now: datetime, lifetime: timedelta) -> None:
        """Let whoever has the token of that digest join, once. Raise Conflict if there are too many tokens."""
        self.tokens.mkdir(mode=0o700, exist_ok=True)
        open_tokens = [each for each in self.tokens.iterdir() if self._is_valid(each, now)]
        if len(open_tokens) >= MAX_TOKENS:
            raise Conflict(TOO_MANY)
        write_atomically(self.tokens / digest, (now + lifetime).isoformat())

    def has_token(self, digest: str, now: datetime) -> bool:
        """Whether the token of that digest is neither used nor expired."""
        return self._is_valid(self.tokens / digest, now)

    def take_token(self, digest: str, now: datetime) -> bool:
        """Use the token of that digest up. Return whether it could be used: of several callers, one can."""
        if not self.has_token(digest, now):
            return False
        try:
            (self.tokens / digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def _is_valid(self, token: Path, now: datetime) -> bool:
        """Also removes one that has expired."""
        try:
            if now < datetime.fromisoformat(read_start(token, _LONGEST_TIME).decode()):
                return True
        except (RunNotFound, InvalidDocument, ValueError, TypeError):
            return False
        token.unlink(missing_ok=True)
        return False

    def asked_to_end(self) -> str | None:
        """The reason, once somebody has asked for the end; None: nobody has."""
        try:
            return read_start(self.cancel, _LONGEST_REASON).decode(errors="replace")
        except RunNotFound:
            return None
        except InvalidDocument:
            return f"{self.cancel} is there, and is not a text"

    def exists(self) -> bool:
        """Whether a run was laid down here, whole."""
        return (self.path / "spec.json").exists()

    def launcher_alive(self) -> bool:
        """Whether a launcher holds the lock; True also in the moment in which it has not read its spec yet."""
        return is_locked(self.lock)

    def _read(self, name: str, most: int = LONGEST) -> str:
        try:
            return read_bytes(self.path / name, most).decode()
        except UnicodeDecodeError as error:
            raise InvalidDocument(f"{self.path / name} is not text: {error.reason}") from error
