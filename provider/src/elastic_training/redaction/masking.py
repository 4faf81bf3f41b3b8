"""The one place where secrets are handed to Airflow's masker, and what may be said of a text that holds some.

The masker replaces exact texts. What is written as JSON, YAML or ``repr`` has quotes and backslashes escaped, and would
pass; so each secret is registered in every form in which it may be written.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import yaml

from elastic_training.airflow.sdk import mask_secret

_SECRET = re.compile(r"password|passwd|passphrase|secret|token(?!iz)|credential|(private|access|api|account)_?key")
"""Names that are hidden whatever Airflow's configuration says."""
_SHORTEST = 5
"""Characters of a secret: as Airflow by default. What is shorter hides more than it protects."""
_LITTLE = frozenset({"", "0", "1", "true", "false", "none", "null", "yes", "no", "on", "off"})
"""Values that would blacken every log."""


def is_secret_name(name: str) -> bool:
    """Whether what stands under that name, of a variable or a field, is hidden."""
    return _SECRET.search(re.sub(r"\W+", "_", name.lower())) is not None


def is_little(value: str) -> bool:
    """Whether hiding it would hide nothing else."""
    return value.strip().lower() in _LITTLE


def is_long(value: str) -> bool:
    """Whether it is long enough for a secret."""
    return len(value.strip()) >= _SHORTEST and not is_little(value)


def forms(secret: str) -> frozenset[str]:
    """A secret as it is, and as JSON, YAML, Python, a URL and a Secret's data write it."""
    return frozenset(
        {
            secret,
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            json.dumps(json.dumps(secret)[1:-1])[1:-1],  # As JSON in JSON, as in an annotation of a manifest.
            repr(secret)[1:-1],
            secret.replace("'", "''"),
            quote(secret, safe=""),
            quote_plus(secret),
            base64.b64encode(secret.encode(errors="replace")).decode(),
        }
    )


def mask(secrets: Iterable[str]) -> None:
    """Have Airflow's log of this task show none of them, however they are written. Not for an event loop."""
    for form in sorted({form for secret in secrets if secret for form in forms(secret)}):
        mask_secret(form)


async def mask_in_loop(secrets: Iterable[str]) -> None:
    """The same for the event loop of a triggerer, in which Airflow 3.3 must be told asynchronously."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:  # before 3.3
        mask(secrets)
        return
    for form in sorted({form for secret in secrets if secret for form in forms(secret)}):
        await amask_secret(form)


def secrets_of(kubeconfig: Any) -> Iterator[str]:
    """Tokens, passwords and keys of all users of a kubeconfig, and what it hands to their plugins under such names."""
    if isinstance(kubeconfig, Mapping) and isinstance(users := kubeconfig.get("users"), list):
        for user in users:
            of_user = user.get("user") if isinstance(user, Mapping) else None
            yield from _secrets(of_user)


_SECRET_KEYS = frozenset(
    {"token", "password", "client-key-data", "id-token", "refresh-token", "access-token", "client-secret"}
)
"""Of a user in a kubeconfig."""


def _secrets(user: Any) -> Iterator[str]:
    # Each node once: aliases in YAML can name one many times, or within itself.
    seen: set[int] = set()
    waiting = [user]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            variable = {node.get("name"): node.get("value")}  # Of a plugin.
            named = {key: each for key, each in node.items() if key in _SECRET_KEYS}
            named |= {key: each for key, each in variable.items() if isinstance(key, str) and is_secret_name(key)}
            yield from (each for each in named.values() if isinstance(each, str) and is_long(each))
        waiting += node.values() if isinstance(node, Mapping) else node


def place_in_yaml(error: yaml.YAMLError) -> str:
    """Where a YAML text is broken; not what stands there, as the error's own words quote it."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
