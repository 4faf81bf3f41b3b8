"""An elastic state of torch's modules and tensors that outlives the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from typing_extensions import override

from elastic_runtime.checkpoint.checkpoints import StoredCheckpoint, opened_checkpoint
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.gradients import GradientsAtCommits, forget_gradients
from elastic_runtime.torch.optimizers import separate_groups
from elastic_runtime.torch.per_rank import check_same_on_every_rank
from elastic_runtime.torch.sharded import is_of_parts
from elastic_runtime.training.checkpointing.parts import read_parts
from elastic_runtime.training.state import durable


class DurableState(durable.DurableState):
    """Elastic state with durable checkpoints; use it where a script uses ``hvd.elastic.TorchState``.

    ``model`` is a module, ``optimizer`` an optimizer (``hvd.DistributedOptimizer`` too), both kept by their
    ``state_dict``. All else stands in :class:`~elastic_runtime.training.state.durable.DurableState`.
    """

    family = TORCH
    _redistributes: ClassVar[bool] = False
    """Whether it has sharded tensors as each world's ranks have them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            field = f"{type(self).__name__}.{name}"
            check_same_on_every_rank(field, value, may_be_sharded=self._redistributes)
            if isinstance(value, torch.optim.Optimizer):
                separate_groups(value)
        super().__setattr__(name, value)

    def on_train_again(self) -> None:
        """Begin without gradients: the training function is about to be called again, after a loss or a change."""
        forget_gradients([*self._objects(), self.model, self.optimizer])

    @override
    def commit(self) -> None:
        """Commit, as the class describes.

        Gradients that are added up over a commit are refused at the optimizer's next step, with ``InvalidSettings``.

        Raises:
            InvalidSettings: ``hvd.DistributedOptimizer`` has added up some of the gradients of a step: each rank has
                its own, and a new one would wait for passes that the others have behind them.
        """
        for name, handler in self._values.handlers.items():
            passes = getattr(handler.value, "backward_passes_per_step", 1)
            left = getattr(handler.value, "_allreduce_delay", {}).values() if passes != 1 else ()
            if any(each < passes for each in left):
                problem = f"commit() comes before a step has all its {passes} backward passes"
                raise InvalidSettings(f"DurableState.{name}", problem, "Commit after optimizer.step() alone")
        self._gradients.committing(self._objects())
        super().commit()

    @cached_property
    def _gradients(self) -> GradientsAtCommits:
        return GradientsAtCommits()

    @override
    def _make_commit(self) -> None:
        self._settle()
        super()._make_commit()

    @override
    def finish(self) -> None:
        """Finish, as the class describes."""
        self._settle()
        super().finish()

    def _settle(self) -> None:
        if self._world.connected:
            self._world.settle()

    def _read(self, stored: StoredCheckpoint) -> dict[str, Any]:
        return _whole(stored)


def load_checkpoint(uri: str, credentials: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Load what a :class:`DurableState` held, to evaluate or export it.

    ::

        model.load_state_dict(load_checkpoint(result["checkpoint"]["uri"])["model"])

    Args:
        uri: of the checkpoint, as a result gives it.
        credentials: variables in which its store finds endpoint and credentials; None: those of this process.

    Returns:
        State dicts (``model``, ``optimizer`` …) and plain attributes (``step`` …) by name, tensors in host memory.

    Raises:
        InvalidSettings: it is not the URI of a checkpoint.
        InvalidDocument: there is none, or it is torn or altered, or TensorFlow's.
        StoreUnavailable: the store does not answer.
    """
    with opened_checkpoint(uri, credentials) as stored:
        return _whole(stored)


def _whole(stored: StoredCheckpoint) -> dict[str, Any]:
    """Also of one that ranks have written in parts."""
    if not any(is_of_parts(part.name) for part in stored.manifest.parts):
        return read_parts(TORCH, stored)
    # Imported where it is needed: torch.distributed's tensors take their time.
    from elastic_runtime.torch.sharded.stored import is_other, read_whole

    return read_whole(stored, read_parts(TORCH, stored, is_other))
