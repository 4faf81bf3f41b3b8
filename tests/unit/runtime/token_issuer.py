"""What an API server does for pods' tokens: it signs them, and publishes the keys that verify them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

Plain = dict[str, Any]
HOUR = 3600.0


def private_key(algorithm: str, number: int = 0) -> PrivateKeyTypes:
    """For tokens of that algorithm; another number, another key."""
    return _private_key(algorithm, number)  # To a cache, a default that is given makes another call.


@cache
def _private_key(algorithm: str, _number: int) -> PrivateKeyTypes:
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[algorithm])
    return rsa.generate_private_key(65537, 2048)


def claims(pod: str, uid: str, audience: str, namespace: str = "ns", seconds: float = HOUR) -> Plain:
    """As Kubernetes 1.20 to 1.36 write them."""
    now = int(time.time())
    return {
        "aud": [audience],
        "exp": int(now + seconds),
        "iat": now,
        "nbf": now,
        "iss": "https://kubernetes.default.svc",
        "sub": f"system:serviceaccount:{namespace}:default",
        "kubernetes.io": {
            "namespace": namespace,
            "pod": {"name": pod, "uid": uid},
            "serviceaccount": {"name": "default", "uid": "0a0a"},
        },
    }


@dataclass
class Issuer:
    """Of one API server."""

    algorithm: str = "ES256"
    keys: dict[str, int] = field(default_factory=lambda: {"first": 0})
    """Numbers of the keys that are published, by their ids; the last one signs."""

    def sign(self, content: Plain, *, kid: str | None = None) -> str:
        """A token with that content."""
        kid = kid or list(self.keys)[-1]
        key: Any = private_key(self.algorithm, self.keys.get(kid, -1))
        return jwt.encode(content, key, self.algorithm, headers={"kid": kid})

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on, and publish no other."""
        self.keys = {kid: max(self.keys.values()) + 1}

    def key_set(self) -> Plain:
        """What is published."""
        return {"keys": [self._published(kid, number) for kid, number in self.keys.items()]}

    def _published(self, kid: str, number: int) -> Plain:
        key: Any = private_key(self.algorithm, number)
        text = jwt.get_algorithm_by_name(self.algorithm).to_jwk(key.public_key())
        public = json.loads(text) if isinstance(text, str) else dict(text)
        public.pop("key_ops", None)
        return public | {"kid": kid, "alg": self.algorithm, "use": "sig"}
