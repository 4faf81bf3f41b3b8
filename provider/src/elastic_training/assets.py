"""Checkpoints as events of Airflow's assets: while a training goes on, and at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elastic_runtime.documents import to_plain
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import Status
from elastic_training.clusters.registry import check_cluster
from elastic_training.settings.values import seconds_of
from elastic_training.triggers.checkpoints import INTERVAL, CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Asset


def checkpoint_asset(
    name: str,
    *,
    dag_id: str,
    task_id: str,
    cluster: str = "local",
    uri: str | None = None,
    interval: float = INTERVAL,
) -> Asset:
    """Create an asset that changes with each durable checkpoint of a training task, while the training continues.

    A DAG with ``schedule=[checkpoint_asset(...)]`` runs at each of them. The event's ``extra["payload"]`` names the
    checkpoint: see :class:`~elastic_training.triggers.checkpoints.CheckpointTrigger`. Needs Airflow 3.0.

    Args:
        name: Name of the asset, unique among assets.
        dag_id: Id of the training's DAG.
        task_id: Id of the training's task, with the ids of its groups.
        cluster: The training's.
        uri: URI of the asset. None: its name.
        interval: Seconds between two looks.

    Raises:
        InvalidSettings: a value is invalid, or Airflow has no asset watchers.
    """
    try:
        from airflow.sdk import Asset, AssetWatcher
    except ImportError:
        remedy = "Give the training's task outlets, which change when it ends"
        raise InvalidSettings("checkpoint_asset", "this Airflow is older than 3.0", remedy) from None
    check_cluster(cluster)
    trigger = CheckpointTrigger(
        dag_id=dag_id, task_id=task_id, cluster=cluster, asset=name, interval=seconds_of("interval", interval)
    )
    return Asset(name=name, uri=uri or name, watchers=[AssetWatcher(name=f"{name} checkpoints", trigger=trigger)])


def report_to_outlets(context: Mapping[str, Any], outlets: Iterable[Any], status: Status) -> None:
    """Put the run and its newest checkpoint into the extra of the events of a task's outlets."""
    events = context.get("outlet_events")
    if events is None or status.checkpoint is None:
        return
    for outlet in outlets:
        try:
            extra = events[outlet].extra
        except (TypeError, KeyError):  # No asset: anything may be an outlet.
            continue
        extra.update({"run": status.run, "uid": status.uid, **to_plain(status.checkpoint)})
