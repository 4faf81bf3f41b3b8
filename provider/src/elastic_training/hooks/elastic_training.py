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
    """Looks after the trainings of one place.

    Runs are called as the XCom ``run_name`` of their task says. Methods are for a task's worker, not for an event loop;
    they raise ClusterUnavailable when the place does not answer, and InvalidSettings when the connection leads to none.

    Args:
        elastic_training_conn_id: id of a connection of type ``elastic_training``; as the operators' ``cluster``, also
            ``"CONNECTION/NAMESPACE"``, a connection of type kubernetes, or ``"local"``.
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
        """Return :attr:`cluster`."""
        return self.cluster

    def list_runs(self) -> Sequence[RunSummary]:
        """All runs that are there, whoever owns them, the newest first."""
        return run(self.cluster.list())

    def get_status(self, name: str) -> Status:
        """How a run is doing. Raises RunNotFound."""
        return run(self._status(name))

    def scale(self, name: str, workers: int | str) -> int:
        """Ask for another number of workers, and return without waiting for it.

        Args:
            name: of the run.
            workers: a number; a change of the size that is asked for, as in ``"+2"``; ``"min"`` or ``"max"``.

        Returns:
            The number that is asked for then.

        Raises:
            InvalidSettings: it is outside of the run's bounds.
            RunNotFound: no such run, or one that is ending.
        """
        return run(self._scale(name, workers))

    def cancel(self, name: str, reason: str = "a hook was asked to end it") -> None:
        """Ask a run to end, and return without waiting; its documents and checkpoints stay. Harmless when it is over.

        Raises:
            RunNotFound: no such run.
        """
        run(self._cancel(name, reason))

    async def _status(self, name: str) -> Status:
        return await self.cluster.status(await self.cluster.find(name))

    async def _scale(self, name: str, workers: int | str) -> int:
        asked = await self.cluster.ask(await self.cluster.find(name), workers, by="a hook")
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
