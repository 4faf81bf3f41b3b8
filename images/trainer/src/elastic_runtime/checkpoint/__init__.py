"""Durable checkpoints: what outlives the fleet.

A checkpoint is its parts (streams of bytes) and a manifest with their sizes and digests, published last and
atomically. :mod:`~elastic_runtime.checkpoint.checkpoints` writes, verifies, chooses and retires them on any
:class:`~elastic_runtime.checkpoint.store.CheckpointStore`; which store, an URI says. Nothing here knows torch, and
importing this package imports nothing heavy: Airflow checks URIs with it while it parses DAGs.
"""

from elastic_runtime.checkpoint.store import CheckpointStore, open_store, validate_store_uri

__all__ = ["CheckpointStore", "open_store", "validate_store_uri"]
