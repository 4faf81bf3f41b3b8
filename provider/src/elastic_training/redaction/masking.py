"""The one place where secrets are handed to Airflow's masker, and what may be said of a text that holds some.

The masker replaces exact texts. What is written as JSON, YAML or ``repr`` has quotes and backslashes escaped, and would
pass; so each secret is registered in every form in which it may be written.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import yaml

from elastic_training.airflow.sdk import mask_secret

_SECRET = re.compile(r"password|passwd|passphrase|secret|token(?!iz)|credential|(private|access|api|account)_?key")
"""Names that are hidden whatever Airflow's configuration says."""
_SHORTEST = 5
"""Characters of a secret: as Airflow by default. What is shorter hides more than it protects."""
_LINE = 12
"""Characters of a line of a secret that is hidden by itself: logs have lines one by one. Shorter ones say little."""
MOST_LINES = 200
"""Lines of a secret that are hidden by themselves."""
_URL_SAFE = ("", "/", "!~*'()", ";,/?:@&=+$-_.!~*'()#")
"""Characters that URLs keep: ``quote(x, safe="")``, ``quote(x)``, JavaScript's encodeURIComponent and encodeURI."""
_ESCAPE = re.compile("%[0-9A-F]{2}")
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
    """A secret in every form that is hidden: whole, as scripts read it, and if it has several lines, each long one."""
    bare = secret.strip()
    lines = [line for each in bare.splitlines()[:MOST_LINES] if len(line := each.strip()) >= _LINE and is_long(line)]
    found = {form for each in {secret, bare} for form in (*_written(each), *_encoded(each))}
    return frozenset(form for form in found.union(*map(_written, lines)) if form.strip())


def _written(text: str) -> Iterator[str]:
    """As it is, and as JSON, YAML, Python, a shell, a URL and HTML write it."""
    yield text
    once = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], *_in_python(text)}
    yield from once
    for each in once:  # JSON in JSON, as in an annotation of a manifest; either in the other.
        yield json.dumps(each)[1:-1]
        yield from _in_python(each)
    yield from _in_python(text.encode(errors="replace"))
    yield text.replace("'", "''")
    if not (text.isascii() and text.isprintable()):  # Else YAML writes it as one of the others do.
        yield yaml.safe_dump([text], default_flow_style=True, width=math.inf).strip()[1:-1].strip("'\"")
    yield shlex.quote(text).strip("'") if "'" in text else text
    yield text.replace("'", "'\\''")  # As ``set -x`` of a shell shows it.
    for url in {quote(text, safe=safe, errors="replace") for safe in _URL_SAFE} | {quote_plus(text, errors="replace")}:
        yield url
        yield _ESCAPE.sub(lambda found: found[0].lower(), url)
    yield html.escape(text, quote=False)
    yield html.escape(text)
    yield html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def _in_python(text: str | bytes) -> Iterator[str]:
    """Within ``repr`` of it, and of a text that has both kinds of quotes beside it."""
    if isinstance(text, bytes):
        yield repr(text)[2:-1]
        yield repr(b"\"'" + text)[5:-1]
        return
    yield repr(text)[1:-1]
    yield repr("\"'" + text)[4:-1]


def _encoded(text: str) -> Iterator[str]:
    """Base64, without padding, so that it is found with it as well; also of the line that ``echo`` makes of it."""
    for data in (text.encode(errors="replace"), f"{text}\n".encode(errors="replace")):
        yield base64.b64encode(data).decode().rstrip("=")
        yield base64.urlsafe_b64encode(data).decode().rstrip("=")


def mask(secrets: Iterable[str]) -> None:
    """Have Airflow's log of this task show none of them, however they are written. Not for an event loop."""
    found: list[Any] = sorted({form for secret in secrets if secret for form in forms(secret)})
    if found:
        mask_secret(found)


async def mask_in_loop(secrets: Iterable[str]) -> None:
    """The same for the event loop of a triggerer, in which Airflow 3.3 must be told asynchronously."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:  # before 3.3
        mask(secrets)
        return
    found: list[Any] = sorted({form for secret in secrets if secret for form in forms(secret)})
    if found:
        await amask_secret(found)


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
