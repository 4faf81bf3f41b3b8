"""Redaction of values: without what looks like a secret, or is known to be one.

Airflow's masker knows secrets by their value (connections, variables, whatever was given to ``mask_secret``) and by the
name that they stand under (``[core] sensitive_var_conn_names`` and its own list). It cannot see a name that is itself a
value, as in a container's environment (``{"name": "DB_PASSWORD", "value": …}``), and it reads no JSON within a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from elastic_runtime.run.spec import RunSpec
from elastic_training.airflow.sdk import redact
from elastic_training.redaction.masking import forms, is_little, is_long, is_secret_name, mask

HIDDEN = "***"
TOO_MANY = "*** (not shown: the run has too many secrets to find each)"
MOST_FORMS = 2000
"""Forms of a run's secrets that are looked for in its texts. A run with more has no texts, rather than slow pages."""
_LONGEST_TEXT, _MOST_PARTS = 10_000, 6
"""Of a text in which parts are looked for; else it is a secret as a whole."""
_TOKENIZER = re.compile("tokeniz", re.IGNORECASE)
_NAMES_OF_THINGS = frozenset(
    {"secretName", "secret_name", "serviceAccount", "serviceAccountName", "service_account", "service_account_name"}
)
"""Fields of Kubernetes whose names look secret, and which only name what is kept elsewhere."""


def redacted(value: Any, name: str | None = None) -> Any:
    """A copy of plain values for people, with ``***`` in the place of secrets.

    Args:
        value: strings, numbers, lists and mappings.
        name: under which it stands, if that can tell that it is secret.
    """
    match value:
        case Mapping():
            return {key: redacted(each, _name_of(value, key)) for key, each in value.items()}
        case list() | tuple():
            return [redacted(each, name) for each in value]
        case None | bool():
            return value
    if looks_secret(name):
        return HIDDEN
    return redact(value) if isinstance(value, str) else value


def masked(value: Any) -> Any:
    """A copy of text, or of plain values, without the secrets that Airflow knows by their value."""
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {key: masked(each) for key, each in value.items()}
        case list() | tuple():
            return [masked(each) for each in value]
    return value


def looks_secret(name: str | None) -> bool:
    """Whether what stands under that name is hidden: by our own list, or by Airflow's and its configuration."""
    if name is None or name in _NAMES_OF_THINGS:
        return False
    return is_secret_name(name) or redact("value", name) != "value"


def _is_hidden_everywhere(name: str | None) -> bool:
    """The same for a value wherever it stands. Airflow's list has tokenizers, whose values are names of models."""
    return looks_secret(None if name is None else _TOKENIZER.sub("", name))


class Secrets:
    """Secrets of one run: its values under names that look secret, for texts about that run.

    Airflow's own masker is one for all that a process does. In an API server or a triggerer, which many DAGs share, a
    variable ``APP_TOKEN=failed`` in it would hide that word on every DAG's pages.

    Args:
        value: plain values, as of :func:`redacted`.
        further: secrets, under whatever names.
    """

    def __init__(self, value: Any, further: Iterable[str] = ()) -> None:
        secrets = {each for each in (*_secrets(value, None), *further) if is_long(each)}
        found: set[str] = set()
        for each in secrets:
            if len(found) > MOST_FORMS:
                break
            found |= forms(each)
        self._too_many = len(found) > MOST_FORMS
        if self._too_many:
            found = set()
        self._pattern = re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True)))) if found else None

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        """Those of a run's environment, and those that its spec names besides."""
        return cls(dict(spec.environment), spec.secrets)

    def hide(self, text: str) -> str:
        """A text without them, and without what Airflow knows to be secret."""
        if self._too_many:
            return TOO_MANY if text else text
        theirs = str(redact(text))
        if self._pattern is None:
            return theirs
        shown = str(redact(self._pattern.sub(HIDDEN, text)))
        # Where two secrets overlap, whichever is replaced first leaves a part of the other.
        return shown if shown == self._pattern.sub(HIDDEN, theirs) else HIDDEN


def remember_secrets(value: Any) -> None:
    """Have Airflow mask, in all that this process logs from now on, what stands under names that look secret.

    For the process of one task, whose log it is; elsewhere :class:`Secrets`. Also texts in which Airflow has found a
    secret: it knows that only as it is, and not as JSON or YAML write it.
    """
    known = (text for text in _texts(value) if redact(text) != text)
    mask(each for each in (*_secrets(value, None), *known, *parts_known(value)) if not is_little(each))


def secrets_in(value: Any) -> Iterator[str]:
    """What stands under names that look secret, if hiding it hides little else."""
    return (each for each in _secrets(value, None) if is_long(each))


def parts_known(value: Any) -> Iterator[str]:
    """The parts of plain values that Airflow's masker knows, such as a connection's password in a URL."""
    for text in _texts(value):
        shown = str(redact(text))
        if shown == text:
            continue
        around = shown.split(HIDDEN)
        found = None
        if len(text) <= _LONGEST_TEXT and len(around) <= _MOST_PARTS:
            found = re.fullmatch("(.+?)".join(map(re.escape, around)), text, re.DOTALL)
        yield from (each for each in (found.groups() if found else (text,)) if is_long(each))


def _secrets(value: Any, name: str | None) -> Iterator[str]:
    match value:
        case Mapping():
            for key, each in value.items():
                yield from _secrets(each, _name_of(value, key))
        case list() | tuple():
            for each in value:
                yield from _secrets(each, name)
        case str() if _is_hidden_everywhere(name):
            yield value


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)


def _name_of(mapping: Mapping[Any, Any], key: Any) -> str | None:
    """Under which name a mapping's value stands: its key, or in a list of variables what stands beside it."""
    named = mapping.get("name")
    if key == "value" and isinstance(named, str):
        return named
    return key if isinstance(key, str) and not isinstance(mapping[key], Mapping) else None
