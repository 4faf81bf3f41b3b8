"""Inputs and outputs of a training for OpenLineage, whose provider need not be installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from elastic_runtime.checkpoint.receipts import file_of, read_segment
from elastic_runtime.checkpoint.store import NAME, open_store
from elastic_runtime.errors import ElasticError
from elastic_runtime.printable import printable
from elastic_runtime.run.status import Checkpoint
from elastic_training.settings.store_credentials import store_credentials

RECEIPT = "elasticTraining_receipt"
"""Facet of the dataset that a checkpoint is: the end of the chain that proves its steps."""
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A run's own, under its task's ``checkpoint_uri``."""
_MANAGER = "airflow.providers.openlineage.extractors.manager"
_SCHEMES = {"gcs": "gs"}


class ReportsLineage:
    """Mix-in for operators that train."""

    inlets: Any
    outlets: Any
    log: Any
    _written: Checkpoint | None = None
    """The newest durable checkpoint of the run that this process has seen the end of."""
    _written_under: tuple[str | None, str | None] = (None, None)
    """Where the task has its checkpoints, and the connection with that store's credentials."""

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  # as Airflow calls it
        """For OpenLineage's provider, also after a failure: what was read, and written."""
        if self._written is None:
            return lineage(self.inlets, self.outlets, None)
        uri, receipt = self._written.uri, None
        try:
            receipt = receipt_of(uri, *self._written_under)
        except ElasticError as error:
            self.log.info("OpenLineage is told of no receipt of %s: %s", printable(uri), printable(error))
        return lineage(self.inlets, self.outlets, uri, receipt)


def receipt_of(checkpoint: str, checkpoints: str | None, conn_id: str | None) -> dict[str, Any] | None:
    """Return what the receipt says of a checkpoint, for :data:`RECEIPT`.

    Args:
        checkpoint: its URI, as the run says.
        checkpoints: where the task's runs have theirs, by its own settings. Nothing is read elsewhere.
        conn_id: Airflow connection with the credentials of that store.

    Raises:
        ElasticError: the script keeps no receipt, or it cannot be read.
    """
    folder, _, name = checkpoint.rpartition("/")
    above, _, of_run = folder.rpartition("/")
    if not checkpoints or above != checkpoints.rstrip("/") or not (_FOLDER.fullmatch(of_run) and NAME.fullmatch(name)):
        return None
    variables = store_credentials(checkpoints, conn_id).variables if conn_id else None
    with closing(open_store(folder, variables)) as store:
        segment, digest = read_segment(store, name)
    return {
        "checkpoint": name,
        "step": segment.step,
        "manifestSha256": segment.manifest,
        "segment": f"{folder}/{file_of(name)}",
        "segmentSha256": digest,
    }


def lineage(
    inlets: Iterable[Any], outlets: Iterable[Any], checkpoint: str | None, receipt: Mapping[str, Any] | None = None
) -> Any:
    """An ``OperatorLineage``: inlets in; outlets and the newest durable checkpoint out.

    Airflow's own inlets and outlets count only for operators that tell nothing themselves, so they are told here.

    Args:
        inlets: of the task, as for any operator.
        outlets: of the task.
        checkpoint: URI.
        receipt: of the checkpoint.

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
            written.append(dataset(namespace=namespace, name=name, facets=_facets(receipt)))
    return base.OperatorLineage(inputs=read, outputs=written)


def _facets(receipt: Mapping[str, Any] | None) -> dict[str, Any]:
    if receipt is None:
        return {}
    facet = import_module("openlineage.client.facet_v2").DatasetFacet()
    return {RECEIPT: facet.with_additional_properties(**receipt)}


def dataset_of(uri: str) -> tuple[str, str]:
    """Namespace and name of a file or a prefix, by OpenLineage's naming.

    (https://openlineage.io/docs/spec/naming: ``s3://bucket`` and the path in it; ``file`` and the absolute path.)
    """
    parts = urlsplit(uri)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if scheme == "file":
        return "file", parts.path.rstrip("/") or "/"
    return f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/"
