"""``@task.elastic_torch``: a Python function as an elastic training with torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from elastic_training.airflow.sdk import TaskDecorator, task_decorator_factory
from elastic_training.decorators.of_function import TrainsByFunction, fields_of, renderers_of
from elastic_training.operators.elastic_torch import ElasticTorchOperator


class ElasticTorchDecoratedOperator(TrainsByFunction, ElasticTorchOperator):
    """Each rank calls the function; see :func:`elastic_torch_task`."""

    custom_operator_name = "@task.elastic_torch"
    template_fields: Sequence[str] = fields_of(ElasticTorchOperator)
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(ElasticTorchOperator)


def elastic_torch_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Train with torch.distributed by a function, which each rank calls.

    The function's source is shipped to the workers, so whatever it uses is imported, or defined, within it. Its
    arguments are JSON: numbers, strings, lists, mappings, templates that become such, and outputs of other tasks.

    Args:
        python_callable: the function, where the decorator has no arguments.
        multiple_outputs: push each key of the result document as an XCom of its own.
        kwargs: of :class:`ElasticTorchOperator`, without ``command``; and ``serializer``: ``"source"``, or
            ``"cloudpickle"`` for a function that needs the module around it, and arguments that are not JSON.

    Raises:
        InvalidSettings: at parse, for a function that cannot run on a worker.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ElasticTorchDecoratedOperator,
        **kwargs,
    )
