"""An elastic training with torch.distributed as one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_training.operators.checks import FOREIGN
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings.observe import Observe
from elastic_training.settings.recovery import Restart, check_restartable, restart_of
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import parse_bool

MARGIN = 5.0
"""Seconds that a worker that leaves has beyond those of its script."""


class ElasticTorchOperator(ElasticTrainingOperator):
    """Train with torch.distributed, on workers that may come and go, and return the result document.

    The script has its training in a function under ``elastic_runtime.torch.elastic.run``, with
    ``DistributedDataParallel`` around the model. With ``restart``, it is any script that runs under ``torchrun``.
    Horovod is not needed. See docs/training-script.md.

    Args:
        restart: How the ranks of a script for torchrun are ended at each change; the next ones begin at its newest
            checkpoint. None: ranks go from world to world in place. Templated.
        kwargs: see :class:`~elastic_training.operators.elastic_training.ElasticTrainingOperator`, also for how it ends.

    Raises:
        InvalidSettings: at parse, for what is known then.
    """

    engine = "torch"
    foreign: ClassVar[Mapping[str, str]] = {**FOREIGN, "horovod": "an ElasticHorovodOperator: it is about its runs"}
    template_fields: Sequence[str] = (*ElasticTrainingOperator.template_fields, "restart")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ElasticTrainingOperator.template_fields_renderers,
        "restart": "json",
    }

    def __init__(self, *, restart: Restart | Mapping[str, Any] | Any | None = None, **kwargs: Any) -> None:
        self.restart = restart
        super().__init__(**kwargs)

    def check_what_is_known(self) -> None:
        """Raises InvalidSettings for what cannot work, whatever templates and other tasks yield."""
        super().check_what_is_known()
        if self.restart is not None and not is_template(self.restart):
            self.restart = restart_of(self.restart)
            check_restartable(self.command, warm=self.warm)

    @override
    def spec(self, name: str, folder: str | None = None, *, start_over: bool = False) -> RunSpec:
        made = super().spec(name, folder, start_over=start_over)
        if self.restart is None:
            return made
        check_restartable(made.command, warm=made.warm)
        restart = restart_of(self.restart).spec()
        leave = max(made.timing.leave_grace, restart.grace + MARGIN)
        return replace(made, engine="torchrun", restart=restart, timing=replace(made.timing, leave_grace=leave))

    def _observe(self) -> Observe:
        observe = super()._observe()
        if not is_template(observe.timeline) and parse_bool("observe.timeline", observe.timeline):
            problem, remedy = "the timeline is Horovod's", "Leave it out; torch's own trace is Observe(profile_steps=5)"
            raise InvalidSettings("observe.timeline", problem, remedy)
        return observe
