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
    """An asset that changes with each durable checkpoint of a training task, while the training goes on.

    A DAG with ``schedule=[checkpoint_asset(...)]`` runs at each; the event's ``extra["payload"]`` says which: see
    :class:`~elastic_training.triggers.checkpoints.CheckpointTrigger`. Needs Airflow 3.0.

    Args:
        name: of the asset, unique among assets.
        dag_id: of the training's DAG.
        task_id: of the training's task in it, its groups' ids included.
        cluster: as of the training.
        uri: of the asset; None: as its name.
        interval: seconds between two looks.

    Raises:
        InvalidSettings: a value that cannot work, or an Airflow without watchers of assets.
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


def tell_outlets(context: Mapping[str, Any], outlets: Iterable[Any], status: Status) -> None:
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
