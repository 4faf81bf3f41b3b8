"""Callbacks: a class of the user's, whose methods are called when something happens in a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import Status
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.identity.ownership import read_owner
from elastic_training.listeners.audience import Listener
from elastic_training.listeners.changes import Change, ChangeKind

_EXAMPLE = 'Write a subclass of TrainingCallback, or the path of one: "my_package.callbacks.Tell"'
_ON_PATH = "Put its module where this process imports from (PYTHONPATH, or Airflow's plugins folder), and start it anew"
_OF_DAG_FILE = ("unusual_prefix_", "__main__")
"""What Airflow and Python call the module of a DAG file."""


class TrainingCallback:
    """Callback for changes of a run. Subclasses override the methods that they need.

    The methods are static, or not: one instance is made for each process that follows a run. ``created`` is called in
    the task's worker; the others where the run is followed, so in the triggerer for a deferred task: see
    docs/results.md. They are called from a thread, one after the other, at least once for each change.

    Args of each method: ``change``, a :class:`~elastic_training.listeners.changes.Change`; ``status``, the run's
    :class:`~elastic_runtime.run.status.Status` (None in ``created``); ``task``, the
    :class:`~elastic_training.identity.ownership.Owner` (``dag_id``, ``run_id``, ``task_id``, ``map_index``,
    ``try_number``). Later versions may give more, so take ``**kwargs``.
    """

    @staticmethod
    def created(**kwargs: Any) -> None:
        """The run was created, or one that was there adopted: ``change.kind`` says which."""

    @staticmethod
    def first_step(**kwargs: Any) -> None:
        """The first global step was reported; never, if the script reports none."""

    @staticmethod
    def resized(**kwargs: Any) -> None:
        """Another number of ranks trains."""

    @staticmethod
    def reformed(**kwargs: Any) -> None:
        """Handle a new world with as many ranks as before."""

    @staticmethod
    def noticed(**kwargs: Any) -> None:
        """A worker will be taken."""

    @staticmethod
    def checkpointed(**kwargs: Any) -> None:
        """A durable checkpoint is complete."""

    @staticmethod
    def finished(**kwargs: Any) -> None:
        """React to the end of the run, whether it succeeded, failed or was cancelled."""


_METHODS = {kind: kind.value for kind in ChangeKind} | {ChangeKind.ADOPTED: "created"}


def check_callbacks(given: object, *, deferrable: bool) -> tuple[str | type[TrainingCallback], ...]:
    """The classes that an operator was given, or their dotted paths, which are not imported yet.

    Args:
        given: None, a class, a path, or several.
        deferrable: whether a triggerer has to import them.

    Raises:
        InvalidSettings: something else, or a class that no triggerer can import.
    """
    several = given if isinstance(given, Iterable) and not isinstance(given, str | type) else (given,)
    return tuple(_checked(each, deferrable) for each in several if each is not None)


def _checked(given: object, deferrable: bool) -> str | type[TrainingCallback]:
    if isinstance(given, str) and all(map(str.isidentifier, given.split("."))) and "." in given:
        return given
    if not (inspect.isclass(given) and issubclass(given, TrainingCallback)):
        raise InvalidSettings("callbacks", f"{given!r} is not a callback's class"[:400], _EXAMPLE)
    if deferrable and ("<locals>" in given.__qualname__ or given.__module__.startswith(_OF_DAG_FILE)):
        problem = f"{given.__qualname__} is defined in a DAG file, from which the triggerer imports nothing"
        raise InvalidSettings("callbacks", problem, "Move it to a module on the path of worker and triggerer")
    return given


def path_of(callback: str | type[TrainingCallback]) -> str:
    """Return the dotted path of a callback class, for triggers, which Airflow serializes."""
    return callback if isinstance(callback, str) else f"{callback.__module__}.{callback.__qualname__}"


def load_callback(path: str) -> type[TrainingCallback]:
    """The class at that path. Raises InvalidSettings when it cannot be imported, or is something else."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):  # Behind the module may stand a class within a class.
        name = ".".join(parts[:end])
        try:
            found: Any = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                continue
            raise InvalidSettings("callbacks", f"{path} cannot be imported: {error}", _ON_PATH) from error
        except Exception as error:  # whatever a module of somebody else's does while it is imported
            raise InvalidSettings("callbacks", f"{path} cannot be imported: {error!r}"[:400], _ON_PATH) from error
        for part in parts[end:]:
            found = getattr(found, part, None)
        if inspect.isclass(found) and issubclass(found, TrainingCallback):
            return found
        break
    raise InvalidSettings("callbacks", f"{path} cannot be imported here as a TrainingCallback", _ON_PATH)


class CallbackListener(Listener):
    """Calls the methods of one class, each in a thread.

    Args:
        path: of the class, or the class; imported when something happens.
        owner: whose try it is.
    """

    def __init__(self, path: str | type[TrainingCallback], owner: str) -> None:
        self._path = path
        self._task = read_owner(owner)
        self._callback: TrainingCallback | None = None
        self._call: asyncio.Future[None] | None = None

    @override
    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        """Call the callback, and raise what it raises."""
        if not news:
            return
        if self._call is not None and not self._call.done():
            raise RuntimeError(f"{self._path} is still handling an earlier event; skipping others until it returns")
        self._call = in_daemon(self._call_all, status, news)
        # Shielded, so that one that does not return is known as such.
        await asyncio.shield(self._call)

    def _call_all(self, status: Status | None, news: Sequence[Change]) -> None:
        if self._callback is None:
            self._callback = (load_callback(self._path) if isinstance(self._path, str) else self._path)()
        failed: Exception | None = None
        for change in news:
            try:
                getattr(self._callback, _METHODS[change.kind])(change=change, status=status, task=self._task)
            except Exception as error:  # noqa: BLE001  # the others of the news are heard in any case
                failed = failed or error
        if failed is not None:
            raise failed
