"""An elastic training with torch.distributed as one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from elastic_runtime.errors import InvalidSettings
from elastic_training.operators.checks import FOREIGN
from elastic_training.operators.restartable import RestartableOperator
from elastic_training.settings.observe import Observe
from elastic_training.settings.templating import is_template


class ElasticTorchOperator(RestartableOperator):
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
    restarting_engine = "torchrun"
    foreign: ClassVar[Mapping[str, str]] = {**FOREIGN, "horovod": "an ElasticHorovodOperator: it is about its runs"}

    def _observe(self) -> Observe:
        observe = super()._observe()
        if observe.wants_whole_timeline:
            problem, remedy = "the timeline is Horovod's", "Leave it out; torch's own trace is Observe(profile_steps=5)"
            raise InvalidSettings("observe.timeline", problem, remedy)
        return observe if is_template(observe.timeline) else replace(observe, timeline=False)
