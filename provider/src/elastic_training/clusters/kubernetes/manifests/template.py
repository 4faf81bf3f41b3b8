"""Pod templates, merged the way KubernetesPodOperator merges them: by cncf.kubernetes' own code.

Needs the Kubernetes client's models, and imports them when it is called: runs without templates do without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from elastic_runtime.errors import InvalidSettings
from elastic_training.redaction.masking import place_in_yaml
from elastic_training.settings.pod_rules import is_model

KPO_CONTAINER = "base"
"""KubernetesPodOperator's name for its container, so that templates written for it work here."""


def merge(template: object, pod: dict[str, Any], container: str, at: str) -> dict[str, Any]:
    """The template with the pod laid over it.

    As KubernetesPodOperator does it: lists of volumes, mounts, environment and init containers are joined, labels and
    annotations too; of everything else the pod's word counts, and where it has none, the template's. The template's
    container of the name ``container``, or ``base``, is the pod's; all its others run beside it.

    Args:
        template: path of a YAML file, a dict as the API writes it, or a V1Pod.
        pod: ours, with one container; only its metadata and spec count.
        container: name of ours.
        at: field that the template was given in.

    Raises:
        InvalidSettings: the template cannot be read, or is not a pod.
    """
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

    base = model(load(template, at), at)
    if base.spec is not None:
        base.spec.containers = _first_ours(base.spec.containers or [], container)
    merged = plain(PodGenerator.reconcile_pods(base, model(pod, at)))
    metadata = merged.get("metadata", {})
    return {
        "metadata": {key: value for key, value in metadata.items() if key in ("labels", "annotations")},
        "spec": merged["spec"],
    }


def plain(value: object) -> Any:
    """A model of the Kubernetes client, or anything with such models in it, as the API writes it."""
    return _client().sanitize_for_serialization(value)


def check_fields(pod: Mapping[str, Any], at: str) -> None:
    """Refuse what the API would drop without a word: a field that no pod has.

    Raises:
        InvalidSettings: with the path of the field.
    """
    model(pod, at)


def model(pod: Mapping[str, Any], at: str) -> Any:
    """The pod as a V1Pod. Raises InvalidSettings with the path of what is no field of one."""
    try:
        answer = SimpleNamespace(data=json.dumps(pod))  # the client reads models from answers of the server only
        model = _client().deserialize(answer, "V1Pod")
        understood = plain(model)
    except (TypeError, ValueError, AttributeError) as error:  # what the client's models raise for what does not fit
        raise InvalidSettings(at, f"it is not a pod: {error}", "Write a pod as the Kubernetes API does") from error
    for path in _missing(pod, understood):
        remedy = "Write it as the API does: camelCase, lists where it has lists"
        raise InvalidSettings(at, f"a pod has no field {path}, or another kind of value there", remedy)
    return model


def _client() -> Any:
    from kubernetes.client import ApiClient, Configuration

    # A configuration of its own: the default one may hold what somebody else has set for the process. A template need
    # not be a whole pod: what is missing in the end, the API server knows best.
    configuration = Configuration()
    configuration.client_side_validation = False
    return ApiClient(configuration=configuration)


def _missing(given: Any, understood: Any, path: str = "") -> Iterator[str]:
    """Paths that were given and not understood."""
    if given in (None, {}, []):
        return
    if isinstance(given, Mapping) and isinstance(understood, Mapping):
        for key, value in given.items():
            yield from _missing(value, understood.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(given, list) and isinstance(understood, list):
        for index, (value, known) in enumerate(zip(given, understood, strict=True)):
            yield from _missing(value, known, f"{path}[{index}]")
    elif understood is None or isinstance(given, Mapping | list) or isinstance(understood, Mapping | list):
        yield path


def _first_ours(containers: list[Any], name: str) -> list[Any]:
    """The container that ours is laid over stands first, where cncf.kubernetes looks for it."""
    from kubernetes.client import V1Container

    ours = [each for each in containers if each.name in (name, KPO_CONTAINER)][:1] or [V1Container(name=name)]
    return ours + [each for each in containers if each is not ours[0]]


def load(template: object, at: str) -> dict[str, Any]:
    """Return a template as a dict. Raise InvalidSettings; arguments as :func:`merge`."""
    if is_model(template):
        return dict(plain(template))
    if isinstance(template, Mapping):
        return dict(template)
    path = Path(str(template))
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            at, f"{path} cannot be read: {error}", "Write the absolute path of a YAML file"
        ) from error
    except yaml.YAMLError as error:
        raise InvalidSettings(
            at, f"{path} is not a YAML document{place_in_yaml(error)}", "Write one pod in it"
        ) from None
    if not isinstance(found, dict) or found.get("kind", "Pod") != "Pod":
        raise InvalidSettings(at, f"{path} holds no pod", "Write one document of kind Pod in it")
    return found
