"""What the decorators have in common: an operator that trains by a Python function, which each rank calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import DecoratedOperator
from elastic_training.decorators.functions import (
    Serializer,
    check_arguments,
    check_call,
    check_function,
    command_of,
    serializer_of,
    shipped_function,
)
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


def fields_of(operator: type[ElasticTrainingOperator]) -> tuple[str, ...]:
    """``template_fields`` of its decorated sister: the function's arguments in the place of a command."""
    return ("op_args", "op_kwargs", *(field for field in operator.template_fields if field != "command"))


def renderers_of(operator: type[ElasticTrainingOperator]) -> dict[str, str]:
    """``template_fields_renderers`` of its decorated sister."""
    return {**DecoratedOperator.template_fields_renderers, **operator.template_fields_renderers}
