"""``cluster="pool:NAME"``: runs of this machine whose workers are of a standing pool, which is in a folder beside them.

Documents, launcher, log and status are those of ``cluster="local"``, in the same folder; a run of a pool is found by
both names.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from elastic_runtime.agent.devices import most_devices
from elastic_runtime.agent.devices import pools as devices
from elastic_runtime.errors import ClusterUnavailable, Conflict, ElasticError, InvalidSettings, RunNotFound
from elastic_runtime.pool import notebook
from elastic_runtime.pool.folder import ADDRESS, PoolDir, pool_folder
from elastic_runtime.pool.machine import KEEPER
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.reading import last_line
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.folder import FolderPlace, deciding, opened, private_folder, remove
from elastic_training.clusters.local import ROOT, TIMES, ThisMachine, reap_later
from elastic_training.clusters.local_python import SETTING, launcher_environment, modules_of
from elastic_training.clusters.place import in_thread

_COMING, _ENDING, _GOING, _LOOK = 15.0, 5.0, 15.0, 0.05
"""Seconds for a keeper to start, for runs that have just ended to leave, and for all of a pool to end; and between two
looks."""
_BEGIN = ".pool."


class PoolCluster(Cluster):
    """Runs of one pool of this machine.

    Args:
        root: folder of all runs and pools.
        python: interpreter of launchers, keeper and workers.
        name: of the pool.
        settings: with which the first run brings it up; None: it has to be up.
        times, poll: as in :class:`~elastic_training.clusters.local.LocalCluster`.
    """

    def __init__(
        self,
        root: Path,
        python: str,
        name: str,
        settings: PoolSettings | None = None,
        times: Times = TIMES,
        poll: float = 0.5,
    ) -> None:
        super().__init__(_PoolPlace(root, python, times, poll, name, settings))


class _PoolPlace(FolderPlace):
    def __init__(
        self, root: Path, python: str, times: Times, poll: float, name: str, settings: PoolSettings | None
    ) -> None:
        super().__init__(root, ThisMachine(python), times, poll)
        self._python, self._name, self._settings = python, name, settings

    @property
    @override
    def where(self) -> str:
        return f"{super().where}, with workers of pool {self._name}"

    @override
    async def plan(self, spec: RunSpec) -> str:
        return f"{await super().plan(spec)}; workers of pool {self._name}"

    @override
    async def create(self, spec: RunSpec, owner: str) -> RunDocument:
        await self._check(spec)
        return await super().create(self._in_pool(spec), owner)

    @override
    def differing(self, found: RunDocument, spec: RunSpec) -> tuple[str, ...]:
        return super().differing(found, self._in_pool(spec))

    @override
    def _lists(self, found: RunDocument) -> bool:
        return found.spec.pool is not None and found.spec.pool.name == self._name

    def _in_pool(self, spec: RunSpec) -> RunSpec:
        known = spec.pool is not None and spec.pool.name == self._name
        return spec if known else replace(spec, pool=PoolSpec(self._name))

    @in_thread
    def _check(self, spec: RunSpec) -> None:
        """Have the pool up, if it can run this spec. Raises InvalidSettings or ClusterUnavailable."""
        settings = have_up(self._root, self._python, self._name, self._settings)
        to_resize = f"run: elastic-training pool resize {self._name} --max {spec.workers.minimum}"
        settings.check_workers(spec.workers.minimum, spec.workers.slots, to_resize)


def have_up(root: Path, python: str, name: str, settings: PoolSettings | None = None) -> PoolSettings:
    """Have a pool up, with a keeper. Blocks.

    Args:
        root: folder of all runs and pools.
        python: interpreter of keeper and workers.
        name: of the pool.
        settings: with which it is brought up if it is not; None: then it is refused.

    Returns:
        Its settings.

    Raises:
        ClusterUnavailable: the folder cannot be written to.
        InvalidSettings: it is not up, or with other settings; or this machine cannot have it.
    """
    private_folder(root, ROOT)
    with deciding(root, f"{_BEGIN}{name}"):
        pool = _opened(root, name)
        try:
            found = pool.settings()
        except RunNotFound:
            if settings is None:
                remedy = f"Run: elastic-training pool up {name} --max N. Or give a task the TrainingPool as its cluster"
                raise InvalidSettings("cluster", f"pool {name} is not up in {root}", remedy) from None
            found = _bring_up(pool, python, settings)
        if settings is not None and not found.agrees(settings):
            resized = found.resized(settings.size).agrees(settings)
            size = f"resize {name} --min {settings.minimum} --max {settings.maximum} --idle {settings.idle:g}"
            remedy = f'Run: elastic-training pool {size if resized else f"down {name}"}. Or write cluster="pool:{name}"'
            raise InvalidSettings("pool", f"pool {name} is up with other settings: {words(found)}", remedy)
        if not pool.has_keeper():
            try:
                reap_later(pool.start(KEEPER, python, launcher_environment(os.environ)))
            except OSError as error:
                problem = f"{python} cannot be started: {error}"
                raise InvalidSettings(SETTING, problem, "Name an interpreter that can") from error
        return found


def _bring_up(pool: PoolDir, python: str, settings: PoolSettings) -> PoolSettings:
    check_machine(settings, devices(os.environ))
    check_notebook(settings, python)
    try:
        if settings.notebook:
            pool.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            notebook.lay_down(pool, _notebook_variables(pool, python, settings.name))
        pool.create(settings)
    except OSError as error:
        raise ClusterUnavailable(f"cannot lay the pool {settings.name} down in {pool.path}: {error}") from error
    return settings


def resize(
    root: Path, name: str, minimum: int | None = None, maximum: int | None = None, idle: float | None = None
) -> PoolSettings:
    """Change a pool that is up, while it is used. Its keeper sees it within a second. Blocks.

    A smaller pool stops no training: each keeps its ``workers.min``, and gives other workers back at its next commit.

    Args:
        root: folder of all runs and pools.
        name: of the pool.
        minimum: workers that stay warm; None: as it is.
        maximum: most workers; None: as it is.
        idle: seconds after which workers above the minimum end; None: as it is.

    Returns:
        Its new settings.

    Raises:
        ClusterUnavailable: the folder cannot be written to.
        InvalidSettings: there is no such size, or this machine cannot have it.
        RunNotFound: it is not up.
    """
    with _held(root, name) as pool:
        found = pool.settings()
        size = found.size.changed(minimum, maximum, idle)
        changed, here = found.resized(size), devices(os.environ)
        if size.maximum > found.first.maximum and not found.gpus and here:
            first = found.first.maximum
            problem = f"pool {name} has no number of GPUs, so {first} workers have equal shares of this machine's"
            remedy = f"Write at most {first}, or run elastic-training pool down {name} and bring it up with more"
            raise InvalidSettings("pool.max", problem, remedy)
        if size.maximum > found.maximum:
            check_machine(changed, here)
        try:
            pool.write_settings(changed)
        except OSError as error:
            raise ClusterUnavailable(f"cannot resize the pool {name} in {pool.path}: {error}") from error
        return changed


def check_machine(settings: PoolSettings, here: Mapping[str, Sequence[str]]) -> None:
    """Raises InvalidSettings if this machine has fewer GPUs than the pool's workers.

    Args:
        settings: of the pool.
        here: GPUs by the variable that makes them visible.
    """
    most = most_devices(here)
    if settings.gpus * settings.maximum > most:
        problem = f"{settings.maximum} workers with {settings.gpus} GPUs each need more than the {most} of this machine"
        raise InvalidSettings("pool.gpus", problem, "Write less, or a smaller max")


def check_notebook(settings: PoolSettings, python: str) -> None:
    """Raises InvalidSettings if the pool shall have a notebook, and no interpreter has JupyterLab; ClusterUnavailable.

    Args:
        settings: of the pool.
        python: interpreter of the workers.
    """
    if settings.notebook and not modules_of(named := settings.notebook.python or python, ["jupyterlab"]):
        remedy = "Install jupyterlab there, or name an interpreter that has it: jupyter_python="
        raise InvalidSettings("pool.jupyter", f"{named} has no jupyterlab", remedy)


def _notebook_variables(pool: PoolDir, python: str, name: str) -> dict[str, str]:
    """With which "elastic-training run" in the notebook finds this pool, and Airflow its configuration."""
    commands = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join(filter(None, (commands, os.environ.get("PATH", "")))),
        "ELASTIC_TRAINING_POOL": name,
        "AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT": str(pool.path.parent),
        "AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON": python,
        **{each: os.environ[each] for each in ("AIRFLOW_HOME",) if each in os.environ},
    }


def notebook_address(settings: PoolSettings) -> str:
    """Return the address of a pool's notebook, without its token; empty: it has none."""
    return f"http://{ADDRESS}:{settings.notebook.port}/lab" if settings.notebook else ""


def notebook_token(root: Path, name: str) -> Path:
    """Return the path of the file with the token of a pool's notebook."""
    return pool_folder(root, name).notebook_token


def await_keeper(root: Path, name: str) -> None:
    """Block until the keeper of a pool has started. Raise ClusterUnavailable."""
    pool, end = _opened(root, name), time.monotonic() + _COMING
    while not (pool.has_keeper() and (pool.path / "keeper.json").exists()):
        if time.monotonic() > end:
            raise ClusterUnavailable(f"pool {name} has no keeper after {_COMING:.0f} s: {last_line(pool.log)}")
        time.sleep(_LOOK)


def take_down(root: Path, name: str) -> None:
    """End a pool that no run uses, and remove its folder. Blocks.

    Raises:
        ClusterUnavailable: its processes have not ended in time.
        Conflict: runs use it.
        RunNotFound: it is not up.
    """
    with _held(root, name) as pool:
        end = time.monotonic() + _ENDING
        while pool.has_keeper() and (runs := _status(pool).runs):
            if time.monotonic() > end:
                raise Conflict(f"pool {name} has runs: {', '.join(each.run for each in runs)}. End them first")
            time.sleep(_LOOK)
        pool.withdraw()
        if not pool.has_keeper():
            notebook.end(pool)
        end = time.monotonic() + _GOING
        while pool.has_keeper() or pool.has_host() or pool.has_notebook():
            if time.monotonic() > end:
                raise ClusterUnavailable(f"pool {name} is down, but its processes have not ended in {_GOING:.0f} s")
            time.sleep(_LOOK)
        remove(root, f"{_BEGIN}{name}")


def list_pools(root: Path) -> Iterator[tuple[PoolStatus, bool]]:
    """Yield the pools of this machine by name, each with whether it has a keeper. Those that cannot be read are not."""
    for path in sorted(root.glob(f"{_BEGIN}*/pool.json")):
        try:
            pool = _opened(root, path.parent.name.removeprefix(_BEGIN))
            yield replace(_status(pool), settings=pool.settings()), pool.has_keeper()
        except ElasticError:  # It is being taken down, or is not a pool.
            continue


def words(settings: PoolSettings) -> str:
    """Return a pool's settings for people."""
    address = notebook_address(settings)
    further = f", a notebook at {address}" if address else ""
    return f"{settings.words}{further}"


@contextmanager
def _held(root: Path, name: str) -> Iterator[PoolDir]:
    """Hold the lock of a pool. Raises RunNotFound: it is not up."""
    _opened(root, name).settings()  # Or a lock file would be left of what never was.
    with deciding(root, f"{_BEGIN}{name}"):
        yield _opened(root, name)


def _status(pool: PoolDir) -> PoolStatus:
    try:
        return pool.status()
    except RunNotFound:  # Its keeper is starting.
        return PoolStatus(pool.settings(), 0, 0)


def _opened(root: Path, name: str) -> PoolDir:
    """As :func:`~elastic_training.clusters.local.opened`, which says what is not believed."""
    opened(root, f"{_BEGIN}{name}", ROOT)
    return pool_folder(root, name)
