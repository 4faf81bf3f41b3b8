"""The hook of connections of type ``elastic_training``: trainings from one's own code, and the form's test button."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from elastic_runtime.errors import ElasticError
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.status import Status
from elastic_training.airflow.sdk import BaseHook
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import CONNECTION_TYPE, read_location
from elastic_training.clusters.registry import get_cluster
from elastic_training.clusters.types import RunSummary
from elastic_training.concurrency.bridge import run
from elastic_training.hooks.checks import check
from elastic_training.hooks.form import HIDDEN, form_fields, placeholders
from elastic_training.redaction.values import masked


class ElasticTrainingHook(BaseHook):
    """Hook for the trainings of one place.

    Runs have the name in their task's XCom ``run_name``. Call the methods in a task's worker, not in an event loop.
    They raise ClusterUnavailable if the place does not answer, and InvalidSettings if the connection is invalid.

    Args:
        elastic_training_conn_id: Id of a connection of type ``elastic_training``. As for the operators' ``cluster``,
            also ``"CONNECTION/NAMESPACE"``, a connection of type kubernetes, or ``"local"``.
    """

    conn_name_attr = "elastic_training_conn_id"
    default_conn_name = "elastic_training_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Elastic Training"

    def __init__(self, elastic_training_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.elastic_training_conn_id = elastic_training_conn_id

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Fields of the form, for Airflow before 3.2; later ones read them from the provider's info."""
        return form_fields()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the behavior of the form's own fields, for Airflow before 3.2."""
        return {"hidden_fields": list(HIDDEN), "relabeling": {}, "placeholders": placeholders()}

    @cached_property
    def cluster(self) -> Cluster:
        """The place, with all that it can do; its methods are asynchronous."""
        return get_cluster(self.elastic_training_conn_id)

    def get_conn(self) -> Cluster:
        """Return :attr:`cluster`, under the name that every Airflow hook has."""
        return self.cluster

    def list_runs(self) -> Sequence[RunSummary]:
        """Return all runs of the place, of any owner, the newest first."""
        return run(self.cluster.list())

    def get_status(self, name: str) -> Status:
        """Return the status of a run. Raise RunNotFound."""
        return run(self._status(name))

    def scale(self, name: str, workers: int | str) -> int:
        """Request another number of workers, and return without waiting for it.

        Args:
            name: Name of the run.
            workers: A number; a change of the requested size, such as ``"+2"``; or ``"min"`` or ``"max"``. 0: pause.

        Returns:
            The number that is requested now; of a pause, the one to which :meth:`resume` goes back.

        Raises:
            InvalidSettings: it is outside of the run's bounds, or the run has no checkpoint store for a pause.
            Conflict: the run is paused.
            RunNotFound: there is no such run, or it is ending.
        """
        return run(self._scale(name, workers))

    def pause(self, name: str) -> None:
        """Pause a run, and return without waiting for it. Raise as :meth:`scale` with 0 does."""
        run(self._scale(name, 0))

    def resume(self, name: str, workers: int | str | None = None) -> int:
        """Resume a paused run, and return without waiting for it.

        Args:
            name: Name of the run.
            workers: A number, ``"min"`` or ``"max"``. None: as many as before the pause.

        Returns:
            The number that is requested now.

        Raises:
            InvalidSettings: it is outside of the run's bounds.
            Conflict: the run is not paused.
            RunNotFound: there is no such run, or it is ending.
        """
        return run(self._resume(name, workers))

    def cancel(self, name: str, reason: str = "a hook was asked to end it") -> None:
        """Ask a run to end, and return without waiting. Documents and checkpoints stay. No effect if it is over.

        Raises:
            RunNotFound: there is no such run.
        """
        run(self._cancel(name, reason))

    async def _status(self, name: str) -> Status:
        return await self.cluster.status(await self.cluster.find(name))

    async def _scale(self, name: str, workers: int | str) -> int:
        asked = await self.cluster.ask(await self.cluster.find(name), workers, by="a hook")
        return asked.workers

    async def _resume(self, name: str, workers: int | str | None) -> int:
        asked = await self.cluster.resume(await self.cluster.find(name), workers, by="a hook")
        return asked.workers

    async def _cancel(self, name: str, reason: str) -> None:
        await self.cluster.cancel(await self.cluster.find(name), reason, None)

    def test_connection(self) -> tuple[bool, str]:
        """Test if a training can run there. Return problems with remedies, without secrets, in 40 s at most."""
        try:
            found = self.get_connection(self.elastic_training_conn_id)
            location = read_location("", found.extra_dejson)  # The form's has a random id.
            good, said = run(check(location))
        except ElasticError as error:
            good, said = False, str(error)
        except Exception as error:  # noqa: BLE001  # of a library, at what a connection says: whoever presses has to know
            good, said = False, f"the test has failed: {type(error).__name__}: {error}"
        return good, printable(masked(said), LONG)
