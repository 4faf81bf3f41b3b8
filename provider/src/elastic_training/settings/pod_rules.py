"""Rules for what a user sets about pods; :mod:`elastic_training.settings.pods` says which field obeys which.

Every function takes the field's full name first and raises :class:`~elastic_runtime.errors.InvalidSettings` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.quantities import amount
from elastic_runtime.run.runobjects import MANAGED_BY_LABEL, PREFIX
from elastic_training import kubernetes_syntax as syntax
from elastic_training.settings.templating import is_template

RESERVED_VARIABLES = "ELASTIC_TRAINING_"
"""Environment that starts so is this package's own."""
RESTRICTED_SOURCES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
"""Kinds of volumes that Pod Security "restricted" admits."""
_TOLERATION = {
    "key": None,
    "operator": ("Exists", "Equal"),
    "value": None,
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "tolerationSeconds": None,
}


def known(at: str, value: object, rule: Callable[..., object], **more: Any) -> None:
    """Apply the rule to a value that is given and known: neither None nor a template."""
    if value is not None and not is_template(value):
        rule(at, value, **more)


def mapping(at: str, value: object, example: str) -> Mapping[Any, Any]:
    """Any mapping; empty while it is not known yet."""
    if is_template(value):
        return {}
    if isinstance(value, Mapping):
        return value
    raise InvalidSettings(at, f"a {type(value).__name__} is not a mapping", f"Write {example}")


def sequence(at: str, value: object, kind: type, example: str) -> Sequence[Any]:
    """A list or tuple of that kind; no string, which would be cut into letters. Empty while it is not known yet."""
    if is_template(value):
        return ()
    if isinstance(value, list | tuple) and all(
        isinstance(each, kind) or (kind is str and is_template(each)) for each in value
    ):
        return value
    raise InvalidSettings(at, f"{value!r} is not a list of {kind.__name__}", f"Write {example}")


def one_of(at: str, value: object, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InvalidSettings(at, f"{value!r} is not one of its values", f"Write one of {', '.join(choices)}")


def is_model(value: object) -> bool:
    """Whether this is an object of the Kubernetes client's models."""
    return hasattr(value, "to_dict") and hasattr(value, "openapi_types")


def free_variable(at: str, name: object) -> None:
    """An environment variable that is not this package's."""
    if syntax.variable(at, name).startswith(RESERVED_VARIABLES):
        raise InvalidSettings(at, f"variables that begin with {RESERVED_VARIABLES} are set here", "Write another name")


def free_key(at: str, key: object) -> None:
    """A label's or annotation's key that is not this package's."""
    if syntax.label_key(at, key).startswith(f"{PREFIX}/") or key == MANAGED_BY_LABEL:
        raise InvalidSettings(at, f"{key} is set by this package", "Write another key")


def relative_path(at: str, path: object) -> None:
    """One that stays where it begins."""
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
        raise InvalidSettings(at, f"{path!r} does not stay in the volume", "Write a relative path without '..'")


def text(at: str, value: object) -> None:
    """Check a text that is to be an environment variable."""
    if value is None or isinstance(value, Mapping | list | tuple):
        raise InvalidSettings(at, f"a {type(value).__name__} is not text", "Write a string or a number")


def string(at: str, value: object) -> None:
    """Check that the value is a string."""
    if not isinstance(value, str):
        raise InvalidSettings(at, f"{value!r} is not a string", "Write a string")


def volume_source(at: str, source: object) -> None:
    """One of the kinds that "restricted" admits, as a pod's ``volumes`` write it."""
    kinds = list(mapping(at, source, '{"csi": {"driver": "..."}}'))
    if len(kinds) != 1 or kinds[0] not in RESTRICTED_SOURCES:
        raise InvalidSettings(
            at,
            f"{kinds} is not a kind of volume that Pod Security 'restricted' admits",
            f"Write one of {', '.join(RESTRICTED_SOURCES)}, or use a claim; a pod template takes any kind",
        )


def resources(at: str, resources: object) -> None:
    """Check a container's resources: known names, quantities, no request above its limit."""
    sides = mapping(at, resources, '{"requests": {"cpu": 2, "memory": "8Gi"}}')
    for side, amounts in sides.items():
        one_of(at, side, ("requests", "limits"))
        for name, value in mapping(f"{at}.{side}", amounts, '{"cpu": 2, "memory": "8Gi"}').items():
            syntax.resource(f"{at}.{side}", name)
            known(f"{at}.{side}.{name}", value, syntax.quantity)
    for name, request in sides.get("requests", {}).items():
        limit = sides.get("limits", {}).get(name, request)
        if is_template(request) or is_template(limit):
            continue
        if amount(str(request)) > amount(str(limit)):
            raise InvalidSettings(
                f"{at}.requests.{name}",
                f"{request} is more than the limit, which is {limit}",
                "Write at most the limit",
            )


def affinity(at: str, affinity: object) -> None:
    """By its top level; the rest is checked when the manifest is made."""
    for key in mapping(at, affinity, '{"nodeAffinity": {...}}'):
        one_of(at, key, ("nodeAffinity", "podAffinity", "podAntiAffinity"))


def toleration(at: str, toleration: object) -> None:
    """Check the fields of a toleration at ``at``. Raise InvalidSettings for unknown fields and values."""
    for name, value in mapping(at, toleration, '{"key": "dedicated", "operator": "Exists"}').items():
        one_of(at, name, tuple(_TOLERATION))
        if choices := _TOLERATION[name]:
            known(f"{at}.{name}", value, one_of, choices=choices)


def template(at: str, template: object) -> None:
    """A file that is there, or something that looks like a pod."""
    if isinstance(template, str | PathLike):
        if not is_template(template) and not Path(template).is_file():
            raise InvalidSettings(
                at, f"file {str(template)!r} does not exist", "Write the absolute path of a YAML file"
            )
        return
    pod = mapping(at, template, "the path of a YAML file, a dict, or a V1Pod")
    for key in pod:
        one_of(at, key, ("apiVersion", "kind", "metadata", "spec"))
