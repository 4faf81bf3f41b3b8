"""Elastic Horovod runs: the launcher, the agents and the training helpers that live in the trainer's image.

Any training script may have ``from elastic_runtime import Folder, Shards, busy, notice, on_notice, outputs``: see
:mod:`elastic_runtime.training.batches.shards`, :mod:`elastic_runtime.script.standing`,
:mod:`elastic_runtime.script.leaving` and :mod:`elastic_runtime.script.kept_outputs`.

Importing this package, or any of its modules outside :mod:`elastic_runtime.torch` and
:mod:`elastic_runtime.engines.horovod`, imports neither torch nor horovod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_runtime.script.kept_outputs import outputs
    from elastic_runtime.script.leaving import Notice, notice, on_notice
    from elastic_runtime.script.standing import busy
    from elastic_runtime.training.batches.shards import Folder, Shards

__version__ = "0.1.0"
__all__ = ["Folder", "Notice", "Shards", "busy", "notice", "on_notice", "outputs"]


def __getattr__(name: str) -> Any:
    """On first use: what only needs the version imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Folder", "Shards"):  # They alone need numpy.
        from elastic_runtime.training.batches import shards

        return getattr(shards, name)
    from elastic_runtime.script import kept_outputs, leaving, standing

    return getattr({"busy": standing, "outputs": kept_outputs}.get(name, leaving), name)
