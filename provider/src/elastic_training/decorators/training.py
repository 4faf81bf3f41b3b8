"""``@task.elastic_horovod`` and ``@task.elastic_torch``: a Python function, which each rank calls, as a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import DecoratedOperator, TaskDecorator, task_decorator_factory
from elastic_training.decorators.functions import (
    Serializer,
    check_arguments,
    check_call,
    check_function,
    command_of,
    serializer_of,
    shipped_function,
)
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.redaction.values import remember_secrets
from elastic_training.settings.templating import as_environment, plain


class TrainsByFunction(DecoratedOperator, ElasticTrainingOperator):
    """To be put before an operator of one engine."""

    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self, *, python_callable: Callable[..., Any], serializer: str = Serializer.SOURCE, **kwargs: Any
    ) -> None:
        if "command" in kwargs:
            remedy = f"For a command use {self._plain_operator().__name__}"
            raise InvalidSettings("command", "the function is what is run", remedy)
        self.serializer = serializer_of(serializer)
        check_function(python_callable, self.serializer)
        validated_only = kwargs.get("_airflow_mapped_validation_only", False)
        super().__init__(python_callable=python_callable, command=command_of(self.serializer), **kwargs)
        self.op_kwargs = as_environment(self.op_kwargs)  # which is shown without secrets
        check_arguments(self.op_args, self.op_kwargs, self.serializer)
        if not validated_only:
            check_call(python_callable, self.op_args, self.op_kwargs)

    @classmethod
    def _plain_operator(cls) -> type[ElasticTrainingOperator]:
        """Of the same engine, for a command."""
        return next(
            each
            for each in cls.__mro__
            if issubclass(each, ElasticTrainingOperator) and not issubclass(each, DecoratedOperator)
        )

    def shipped_files(self) -> dict[str, bytes]:
        """The function and its arguments, and what is to be shipped beside it. Raises InvalidSettings."""
        beside = super().shipped_files()
        function = shipped_function(self.python_callable, self.op_args, self.op_kwargs, self.serializer)
        if taken := sorted(beside.keys() & function.keys()):
            raise InvalidSettings("scripts", f"{taken[0]} is a name of the function's own files", "Rename it")
        return beside | function

    def remember_secrets(self) -> None:
        """Those of the arguments, too."""
        super().remember_secrets()
        remember_secrets([plain(self.op_args), plain(self.op_kwargs)])


def _fields_of(operator: type[ElasticTrainingOperator]) -> tuple[str, ...]:
    """``template_fields`` of its decorated sister: the function's arguments in the place of a command."""
    return ("op_args", "op_kwargs", *(field for field in operator.template_fields if field != "command"))


def _renderers_of(operator: type[ElasticTrainingOperator]) -> dict[str, str]:
    """``template_fields_renderers`` of its decorated sister."""
    return {**DecoratedOperator.template_fields_renderers, **operator.template_fields_renderers}


class ElasticHorovodDecoratedOperator(TrainsByFunction, ElasticHorovodOperator):
    """Each rank calls the function; see :func:`elastic_horovod_task`."""

    custom_operator_name = "@task.elastic_horovod"
    template_fields: Sequence[str] = _fields_of(ElasticHorovodOperator)
    template_fields_renderers: ClassVar[dict[str, str]] = _renderers_of(ElasticHorovodOperator)


class ElasticTorchDecoratedOperator(TrainsByFunction, ElasticTorchOperator):
    """Each rank calls the function; see :func:`elastic_torch_task`."""

    custom_operator_name = "@task.elastic_torch"
    template_fields: Sequence[str] = _fields_of(ElasticTorchOperator)
    template_fields_renderers: ClassVar[dict[str, str]] = _renderers_of(ElasticTorchOperator)


def elastic_horovod_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Train with Elastic Horovod by a function that each rank calls.

    The function's source is shipped to the workers, so import or define everything that it uses within it. Its
    arguments are JSON: numbers, strings, lists, mappings, templates that become such, and outputs of other tasks.

    Args:
        python_callable: The function, if the decorator has no arguments.
        kwargs: Parameters of :class:`ElasticHorovodOperator`, without ``command``. ``multiple_outputs`` pushes each
            key of the result document as its own XCom (default False). ``serializer`` is ``"source"``, or
            ``"cloudpickle"`` for a function that needs its module, and for arguments that are not JSON.

    Raises:
        InvalidSettings: at parse, for a function that cannot run on a worker.
    """
    return _decorator(ElasticHorovodDecoratedOperator, python_callable, **kwargs)


def elastic_torch_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Train with torch.distributed by a function that each rank calls.

    Arguments and errors are as for :func:`elastic_horovod_task`, with those of :class:`ElasticTorchOperator`.
    """
    return _decorator(ElasticTorchDecoratedOperator, python_callable, **kwargs)


def _decorator(
    operator: type[TrainsByFunction],
    python_callable: Callable[..., Any] | None,
    *,
    multiple_outputs: bool = False,
    **kwargs: Any,
) -> TaskDecorator:
    return task_decorator_factory(
        python_callable=python_callable, multiple_outputs=multiple_outputs, decorated_operator_class=operator, **kwargs
    )
