"""Inputs and outputs of a training for OpenLineage, whose provider need not be installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from elastic_runtime.run.status import Checkpoint

_MANAGER = "airflow.providers.openlineage.extractors.manager"
_SCHEMES = {"gcs": "gs"}


class ReportsLineage:
    """Mix-in for operators that train."""

    inlets: Any
    outlets: Any
    _written: Checkpoint | None = None
    """The newest durable checkpoint of the run that this process has seen the end of."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  # as Airflow calls it
        """For OpenLineage's provider, also after a failure: what was read, and written."""
        return lineage(self.inlets, self.outlets, self._written.uri if self._written else None)


def lineage(inlets: Iterable[Any], outlets: Iterable[Any], checkpoint: str | None) -> Any:
    """An ``OperatorLineage``: inlets in; outlets and the newest durable checkpoint out.

    Airflow's own inlets and outlets count only for operators that tell nothing themselves, so they are told here.

    Args:
        inlets: of the task, as for any operator.
        outlets: of the task.
        checkpoint: URI.

    Raises:
        ImportError: there is no OpenLineage provider.
    """
    manager = import_module(_MANAGER).ExtractorManager
    base = import_module("airflow.providers.openlineage.extractors")
    read = [found for each in inlets if (found := manager.convert_to_ol_dataset(each)) is not None]
    written = [found for each in outlets if (found := manager.convert_to_ol_dataset(each)) is not None]
    if checkpoint is not None:
        dataset = import_module("openlineage.client.event_v2").OutputDataset
        namespace, name = dataset_of(checkpoint)
        if (namespace, name) not in {(each.namespace, each.name) for each in written}:
            written.append(dataset(namespace=namespace, name=name))
    return base.OperatorLineage(inputs=read, outputs=written)


def dataset_of(uri: str) -> tuple[str, str]:
    """Namespace and name of a file or a prefix, by OpenLineage's naming.

    (https://openlineage.io/docs/spec/naming: ``s3://bucket`` and the path in it; ``file`` and the absolute path.)
    """
    parts = urlsplit(uri)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if scheme == "file":
        return "file", parts.path.rstrip("/") or "/"
    return f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/"
