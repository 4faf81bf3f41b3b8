"""Which deployment of Airflow this is, so that two of them in one namespace, or on one checkpoint prefix, keep apart.

The metadata database, which alone is unique by nature, is out of reach of tasks. What they share with each other, and
with no other deployment, is the key that connections are encrypted with.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import conf
from elastic_training.kubernetes_syntax import dns_label

_SECTION, _OPTION = "elastic_training", "deployment"
_LONGEST = 40
_DIGITS = 8
_KEY_BYTES = 32


def deployment() -> str:
    """A short name, the same in every process that runs tasks; empty where nothing tells.

    ``[elastic_training] deployment``; or 32 bits of an HMAC by ``[core] fernet_key``, from which the key cannot be
    guessed (it is 256 random bits). Of several keys the last counts: when keys are rotated, the new one comes first.

    Raises:
        InvalidSettings: the option is not a name that Kubernetes takes.
    """
    if given := str(conf.get(_SECTION, _OPTION, fallback="") or "").strip():
        if len(given) > _LONGEST:
            raise InvalidSettings(f"[{_SECTION}] {_OPTION}", f"it has {len(given)} characters", "Write at most 40")
        return dns_label(f"[{_SECTION}] {_OPTION}", given)
    key = _key(str(conf.get("core", "fernet_key", fallback="") or "").split(",")[-1].strip())
    return hmac.new(key, b"elastic-training deployment", "sha256").hexdigest()[:_DIGITS] if key else ""


def _key(text: str) -> bytes:
    """Empty for what is not a key: the default of a process that was given none is a word in braces."""
    try:
        key = urlsafe_b64decode(text)
    except ValueError:
        return b""
    return key if len(key) == _KEY_BYTES else b""
