"""How Kubernetes wants things written: names, labels, quantities, paths. Pure, and without a client.

So that a slip of the pen fails where the DAG file is parsed, with the setting's name and a remedy, and not minutes
later in the words of an API server. Every function raises :class:`~elastic_runtime.errors.InvalidSettings`, and returns
the value as the text that goes into a manifest.

The grammars are those of `names`_, `labels`_ and `quantities`_.

.. _names: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
.. _labels: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
.. _quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import hashlib
import re

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.quantities import QUANTITY, amount

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_DATA_KEY = re.compile(r"(?!\.{1,2}$)[-._a-zA-Z0-9]{1,253}")
_IMAGE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
)
_LABEL_LENGTH = 63
"""Characters of a label's value."""
_STANDARD = ("cpu", "memory", "ephemeral-storage")


def dns_label(field: str, value: object) -> str:
    """Name of a namespace: ``[a-z0-9]([-a-z0-9]*[a-z0-9])?``, at most 63 characters."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    remedy = "Write at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
    raise InvalidSettings(field, f"{value!r} is not a name", remedy)


def object_name(field: str, value: object) -> str:
    """Name of a Secret, claim, service account, …: DNS labels with dots between, at most 253 characters."""
    if isinstance(value, str) and len(value) <= 253 and _SUBDOMAIN.fullmatch(value):
        return value
    remedy = "Write lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
    raise InvalidSettings(field, f"{value!r} is not an object's name", remedy)


def label_key(field: str, value: object) -> str:
    """Key of a label or an annotation: ``NAME`` or ``DOMAIN/NAME``."""
    if isinstance(value, str):
        domain, slash, name = value.rpartition("/")
        if _QUALIFIED.fullmatch(name) and (not slash or (len(domain) <= 253 and _SUBDOMAIN.fullmatch(domain))):
            return value
    remedy = "Write NAME or DOMAIN/NAME, the name of at most 63 letters, digits, '-', '_' and '.'"
    raise InvalidSettings(field, f"{value!r} is not a key", remedy)


def label_value(field: str, value: object) -> str:
    """Value of a label; may be empty."""
    if isinstance(value, str) and (not value or _QUALIFIED.fullmatch(value)):
        return value
    remedy = "Write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, as a string"
    raise InvalidSettings(field, f"{value!r} is not a label's value", remedy)


def safe_label_value(text: str) -> str:
    """Any text as a label's value, the same that KubernetesPodOperator makes of it.

    That is ``make_safe_label_value`` of cncf.kubernetes' ``pod_generator``, whose import would cost every task half a
    second. Only of a text without any allowed character does that one make no value, but ``-`` and the digest.

    Returns:
        The text where it is a value; else its allowed characters, cut, with a digest of the whole behind them.
    """
    safe = re.sub(r"^[^a-z0-9A-Z]*|[^a-zA-Z0-9_\-\.]|[^a-z0-9A-Z]*$", "", text)
    if safe == text and len(safe) <= _LABEL_LENGTH:
        return safe
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:9]
    return f"{safe[: _LABEL_LENGTH - len(digest) - 1]}-{digest}".lstrip("-")


def variable(field: str, value: object) -> str:
    """Name of an environment variable."""
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        return value
    remedy = "Write letters, digits, '_', '-' and '.', no digit first"
    raise InvalidSettings(field, f"{value!r} is not a variable's name", remedy)


def data_key(field: str, value: object) -> str:
    """Key in a Secret or ConfigMap, which is also the name of its file."""
    if isinstance(value, str) and _DATA_KEY.fullmatch(value):
        return value
    raise InvalidSettings(field, f"{value!r} is not a key of its data", "Write letters, digits, '-', '_' and '.'")


def absolute_path(field: str, value: object) -> str:
    """Check the path of a mount."""
    if (
        isinstance(value, str)
        and value.startswith("/")
        and value.strip("/")
        and ":" not in value
        and ".." not in value.split("/")
    ):
        return value
    raise InvalidSettings(field, f"{value!r} is not an absolute path", "Write a path that begins with '/', without ':'")


def image(field: str, value: object) -> str:
    """Reference of a container image: ``REGISTRY/REPOSITORY:TAG`` or ``…@sha256:…``."""
    if isinstance(value, str) and _IMAGE.fullmatch(value):
        return value
    raise InvalidSettings(field, f"{value!r} is not an image's name", 'Write "registry.example/team/trainer:1"')


def resource(field: str, value: object) -> str:
    """Name of a resource of a container: ``cpu``, ``memory``, or with a domain."""
    if isinstance(value, str) and (value in _STANDARD or value.startswith("hugepages-") or "/" in value):
        return label_key(field, value)
    remedy = "Write cpu, memory, ephemeral-storage, or a device plugin's resource with its domain"
    raise InvalidSettings(field, f"{value!r} is not a resource", remedy)


def extended_resource(field: str, value: object) -> str:
    """Name of a device plugin's resource, always with its domain: ``nvidia.com/gpu``."""
    if isinstance(value, str) and "/" in value:
        return label_key(field, value)
    remedy = 'Write it with its domain, as in "nvidia.com/gpu" or "amd.com/gpu"'
    raise InvalidSettings(field, f"{value!r} is not a device plugin's resource", remedy)


def quantity(field: str, value: object) -> str:
    """An amount of a resource, ``500m``, ``2Gi``, ``1.5``, ``1e3``; never negative."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(text, str) and QUANTITY.fullmatch(text):
        if amount(text) < 0:
            raise InvalidSettings(field, f"{value!r} is negative", 'Write 0 or more, as in "500m" or "2Gi"')
        return text
    raise InvalidSettings(
        field, f"{value!r} is not a quantity", 'Write a number, with a unit or without: "500m", "2Gi"'
    )
