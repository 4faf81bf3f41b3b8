"""Buttons on a training task's page: to where its run, its log and its checkpoints are shown.

Which address that is, only the deployment knows: ``[elastic_training] run_url``, ``log_url`` and ``checkpoint_url`` are
templates of it. The task makes the addresses when it has its run, and keeps them as XComs, so that they are there while
the training goes on. Where a template is not set, or says something that is not known of this run, there is no button;
but for the report, which this Airflow shows itself, where it shows pages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from elastic_runtime.errors import ElasticError
from elastic_training.airflow.sdk import BaseOperatorLink, XCom, conf
from elastic_training.archive.document import report_uri
from elastic_training.archive.where import address_of
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import SECTION, namespace_of
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.identity.page_address import has_pages, page_path, report_query

_FIELD = re.compile(r"\{(\w*)\}")
_LONGEST = 2000
"""Characters of an address."""
GOOGLE = "https://console.cloud.google.com/storage/browser/{bucket}/{prefix}"
"""Where a ``gs://`` prefix is shown, whoever looks; an ``s3://`` may be of any maker."""

_RUN, _LOG, _CHECKPOINTS, _REPORT = (
    f"elastic_training_{each}_link" for each in ("run", "log", "checkpoints", "report")
)
_OPTIONS = {_RUN: "run_url", _LOG: "log_url", _CHECKPOINTS: "checkpoint_url", _REPORT: "report_url"}
_OF_TASK = ("dag_id", "run_id", "task_id", "map_index", "try_number")


class _Link(BaseOperatorLink):
    """Its address, as the task has kept it."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002  # as Airflow calls it
        """Empty: there is none. Airflow 2 asks in its web server; Airflow 3 in the task, and reads the XCom itself."""
        kept = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return kept if isinstance(kept, str) else ""


class TrainingRunLink(_Link):
    """A link to the run."""

    name = "Training run"
    xcom_key = _RUN


class TrainingLogLink(_Link):
    """Button that leads to the log of the run's launcher and ranks."""

    name = "Training log"
    xcom_key = _LOG


class CheckpointsLink(_Link):
    """A link to the run's checkpoints."""

    name = "Checkpoints"
    xcom_key = _CHECKPOINTS


class ReportLink(_Link):
    """To the run's report: as it is while it goes on, as it was kept once it is over."""

    name = "Report"
    xcom_key = _REPORT


LINKS: Collection[BaseOperatorLink] = (TrainingRunLink(), TrainingLogLink(), CheckpointsLink(), ReportLink())


class LinksOfTask:
    """``operator_extra_links`` of a training operator: none in the process of a task, which has pushed what there is.

    Airflow 3 would ask each link there once the task is over, log an error for each XCom that is not there, and push an
    empty one.
    """

    def __get__(self, task: Any, _operator: type[Any] | None = None) -> Collection[BaseOperatorLink]:
        runs = getattr(task, "_lock_for_execution", False) or getattr(task, "_BaseOperator__from_mapped", False)
        return () if runs else LINKS


def addresses(
    cluster: Cluster,
    place: str,
    ref: RunRef,
    owner: Owner,
    checkpoints: str | None = None,
    conn_id: str | None = None,
) -> dict[str, str]:
    """XComs of the links that there are for this run. For a task's worker; raises nothing that a cluster can cause.

    Args:
        cluster: where the run is.
        place: its own name.
        ref: of the run.
        owner: whose try it is.
        checkpoints: the task's ``checkpoint_uri``.
        conn_id: Airflow connection with the credentials of the checkpoint store.
    """
    templates = {key: conf.get(SECTION, option, fallback="") or "" for key, option in _OPTIONS.items()}
    try:
        checkpoint = run(cluster.spec(ref)).checkpoint  # Of an adopted run, another one than this try's own.
    except ElasticError:  # There may be another try for the buttons.
        return {}
    known: dict[str, object] = {name: getattr(owner, name) for name in _OF_TASK}
    known |= {"run": ref.name, "uid": ref.uid, "cluster": place, "namespace": namespace_of(place)}
    if checkpoint is None:
        del templates[_CHECKPOINTS]
    else:
        parts = urlsplit(checkpoint.uri)
        known |= {"checkpoint": checkpoint.uri, "bucket": parts.netloc, "prefix": parts.path.strip("/")}
        if parts.scheme in ("gs", "gcs") and not templates[_CHECKPOINTS]:
            templates[_CHECKPOINTS] = GOOGLE
    made = {key: address(template, known) for key, template in templates.items() if key != _REPORT}
    made[_REPORT] = _report(templates[_REPORT], known, checkpoints, conn_id, place, owner)
    return {key: each for key, each in made.items() if each}


def _report(
    template: str,
    known: Mapping[str, object],
    checkpoints: str | None,
    conn_id: str | None,
    place: str,
    owner: Owner,
) -> str | None:
    """Of this try's report: where the deployment says, which is there once the run is over, or else on our page."""
    if not template:
        # A path alone: whatever name people know this Airflow by, it is the same one.
        return f"{page_path()}/{report_query(owner.task, owner.try_number)}" if has_pages() else None
    try:
        where = address_of(checkpoints, conn_id, place)
    except ElasticError:  # Said where the report is written.
        return None
    if where is None:
        return None
    uri = report_uri(where.uri, owner.task, owner.try_number)
    parts = urlsplit(uri)
    return address(template, {**known, "report": uri, "bucket": parts.netloc, "prefix": parts.path.strip("/")})


def address(template: str, known: Mapping[str, object]) -> str | None:
    """The template with its ``{fields}`` filled in, each as a part of an address; None when one is not known.

    Also None for what a browser should not be led to: anything but ``http`` and ``https``, or an endless text.
    """

    def filled(found: re.Match[str]) -> str:
        return quote(str(known[found[1]]), safe="/" if found[1] in ("prefix", "bucket") else "")

    if not template or any(known.get(name) in (None, "") for name in _FIELD.findall(template)):
        return None
    made = _FIELD.sub(filled, template)
    good = made.lower().startswith(("https://", "http://")) and len(made) <= _LONGEST
    return made if good else None
