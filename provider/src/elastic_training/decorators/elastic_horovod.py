"""``@task.elastic_horovod``: a Python function as an elastic training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from elastic_training.airflow.sdk import TaskDecorator, task_decorator_factory
from elastic_training.decorators.of_function import TrainsByFunction, fields_of, renderers_of
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator


class ElasticHorovodDecoratedOperator(TrainsByFunction, ElasticHorovodOperator):
    """Each rank calls the function; see :func:`elastic_horovod_task`."""

    custom_operator_name = "@task.elastic_horovod"
    template_fields: Sequence[str] = fields_of(ElasticHorovodOperator)
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(ElasticHorovodOperator)


def elastic_horovod_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Train with Elastic Horovod by a function, which each rank calls.

    The function's source is shipped to the workers, so whatever it uses is imported, or defined, within it. Its
    arguments are JSON: numbers, strings, lists, mappings, templates that become such, and outputs of other tasks.

    Args:
        python_callable: the function, where the decorator has no arguments.
        multiple_outputs: push each key of the result document as an XCom of its own.
        kwargs: of :class:`ElasticHorovodOperator`, without ``command``; and ``serializer``: ``"source"``, or
            ``"cloudpickle"`` for a function that needs the module around it, and arguments that are not JSON.

    Raises:
        InvalidSettings: at parse, for a function that cannot run on a worker.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ElasticHorovodDecoratedOperator,
        **kwargs,
    )
