"""An elastic Horovod training as one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings.horovod_knobs import Horovod, horovod_of, merged
from elastic_training.settings.templating import is_template


class ElasticHorovodOperator(ElasticTrainingOperator):
    """Train with Elastic Horovod, on workers that may come and go, and return the result document.

    Args:
        horovod: Horovod's own knobs, with the names of ``horovodrun``'s flags. Templated.
        kwargs: see :class:`~elastic_training.operators.elastic_training.ElasticTrainingOperator`, also for how it ends.

    Raises:
        InvalidSettings: at parse, for what is known then.
    """

    engine = "horovod"
    template_fields: Sequence[str] = (*ElasticTrainingOperator.template_fields, "horovod")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ElasticTrainingOperator.template_fields_renderers,
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
        return merged(own, horovod_of(self.horovod).environment(fixed_size=fixed_size))
