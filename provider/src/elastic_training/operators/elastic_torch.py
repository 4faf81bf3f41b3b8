"""An elastic training with torch.distributed as one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from elastic_runtime.errors import InvalidSettings
from elastic_training.observe import Observe
from elastic_training.operators.arguments import FOREIGN
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings import parse_bool
from elastic_training.templating import is_template


class ElasticTorchOperator(ElasticTrainingOperator):
    """Trains with torch.distributed, on workers that may come and go, and returns the result document.

    The script is one of docs/torch-distributed.md: its training is in ``elastic_runtime.torch.elastic.run``, with
    ``DistributedDataParallel`` around the model. Nothing of Horovod is needed.

    Args:
        kwargs: see :class:`~elastic_training.operators.elastic_training.ElasticTrainingOperator`, also for how it ends.

    Raises:
        InvalidSettings: at parse, for what is known then.
    """

    engine = "torch"
    foreign: ClassVar[Mapping[str, str]] = {**FOREIGN, "horovod": "an ElasticHorovodOperator: it is about its runs"}

    def _observe(self) -> Observe:
        observe = super()._observe()
        if not is_template(observe.timeline) and parse_bool("observe.timeline", observe.timeline):
            problem, remedy = "the timeline is Horovod's", "Leave it out; torch's own trace is Observe(profile_steps=5)"
            raise InvalidSettings("observe.timeline", problem, remedy)
        return observe
