"""An elastic Horovod training as one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from elastic_training.operators.restartable import RestartableOperator
from elastic_training.settings.horovod_knobs import Horovod, horovod_of, merged
from elastic_training.settings.templating import is_template


class ElasticHorovodOperator(RestartableOperator):
    """Train with Elastic Horovod, on workers that may come and go, and return the result document.

    The script trains in a function under ``hvd.elastic.run``. With ``restart``, it is any script that runs under
    ``horovodrun``. See docs/training-script.md and docs/torchrun.md.

    Args:
        restart: How the ranks of a script for horovodrun are ended at each change; the next ones begin at its newest
            checkpoint. None: ranks go from world to world in place. Templated.
        horovod: Horovod's own knobs, with the names of ``horovodrun``'s flags. Templated.
        kwargs: see :class:`~elastic_training.operators.elastic_training.ElasticTrainingOperator`, also for how it ends.

    Raises:
        InvalidSettings: at parse, for what is known then.
    """

    engine = "horovod"
    restarting_engine = "horovodrun"
    template_fields: Sequence[str] = (*RestartableOperator.template_fields, "horovod")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **RestartableOperator.template_fields_renderers,
        "horovod": "json",
    }

    def __init__(self, *, horovod: Horovod | Mapping[str, Any] | Any | None = None, **kwargs: Any) -> None:
        self.horovod = horovod
        super().__init__(**kwargs)

    def check_what_is_known(self) -> None:
        """Raises InvalidSettings for what cannot work, whatever templates and other tasks yield."""
        super().check_what_is_known()
        self.horovod = Horovod() if self.horovod is None else self.horovod
        if not is_template(self.horovod):
            self.horovod = horovod_of(self.horovod)

    def rank_environment(self, *, fixed_size: bool) -> dict[str, str]:
        """With the variables of the knobs. Raises InvalidSettings."""
        own = super().rank_environment(fixed_size=fixed_size)
        # Horovod can tune in one world of a process, and no longer.
        one_world = fixed_size or self.restart is not None
        return merged(own, horovod_of(self.horovod).environment(fixed_size=one_world))
