"""Names of Airflow, wherever its version has them: in the Task SDK of 3, or in the packages of 2.11.

Airflow's own provider for this, ``common.compat``, has all of them only in versions that no constraints of Airflow
below 3.3 allow. A name is looked for when it is first used, so that importing this module imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowOptionalProviderFeatureException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        BaseHook,
        BaseOperator,
        BaseOperatorLink,
        BaseSensorOperator,
        Connection,
        DecoratedOperator,
        PokeReturnValue,
        Stats,
        TaskDecorator,
        XCom,
        XComArg,
        conf,
        mask_secret,
        redact,
        task_decorator_factory,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowOptionalProviderFeatureException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "Connection",
    "DecoratedOperator",
    "PokeReturnValue",
    "Stats",
    "TaskDecorator",
    "XCom",
    "XComArg",
    "conf",
    "mask_secret",
    "redact",
    "task_decorator_factory",
]

_ERRORS = ("airflow.sdk.exceptions", "airflow.exceptions")
_PLACES: dict[str, tuple[str, ...]] = {
    "AirflowException": _ERRORS,
    "AirflowFailException": _ERRORS,
    "AirflowNotFoundException": _ERRORS,
    "AirflowOptionalProviderFeatureException": _ERRORS,
    "AirflowSkipException": _ERRORS,
    "AirflowTaskTimeout": _ERRORS,
    "AirflowSensorTimeout": _ERRORS,
    "BaseSensorOperator": ("airflow.sdk", "airflow.sensors.base"),
    "PokeReturnValue": ("airflow.sdk", "airflow.sensors.base"),
    "BaseHook": ("airflow.sdk", "airflow.hooks.base"),
    "BaseOperator": ("airflow.sdk", "airflow.models.baseoperator"),
    "BaseOperatorLink": ("airflow.sdk", "airflow.models.baseoperatorlink"),
    "Connection": ("airflow.sdk", "airflow.models.connection"),
    "DecoratedOperator": ("airflow.sdk.bases.decorator", "airflow.decorators.base"),
    "Stats": ("airflow.sdk.observability.stats", "airflow.observability.stats", "airflow.stats"),
    "TaskDecorator": ("airflow.sdk.bases.decorator", "airflow.decorators"),
    "XCom": ("airflow.sdk.execution_time.xcom", "airflow.models.xcom"),
    "XComArg": ("airflow.sdk", "airflow.models.xcom_arg"),
    "conf": ("airflow.sdk.configuration", "airflow.configuration"),
    "mask_secret": ("airflow.sdk.log", "airflow.sdk.execution_time.secrets_masker", "airflow.utils.log.secrets_masker"),
    "redact": (
        "airflow.sdk.log",
        "airflow.sdk._shared.secrets_masker",
        "airflow.sdk.execution_time.secrets_masker",
        "airflow.utils.log.secrets_masker",
    ),
    "task_decorator_factory": ("airflow.sdk.bases.decorator", "airflow.decorators.base"),
}
"""Modules in which a name may be, the newest Airflow's first."""


def __getattr__(name: str) -> Any:
    """Raises ImportError for a name that no module has which this Airflow brings."""
    for place in _PLACES.get(name, ()):
        try:
            return getattr(import_module(place), name)
        except (ImportError, AttributeError):
            continue
    if name in _PLACES:
        raise ImportError(f"this Airflow has no {name}")
    raise AttributeError(name)
