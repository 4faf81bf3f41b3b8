"""Who asks the rendezvous: each rank has a token of its own, which names its host and proves it.

A rank finds its token in the environment variable :data:`TOKEN`; the amended Horovod (``images/trainer/patches``) and
:mod:`~elastic_runtime.engines.horovod.rendezvous_client` send it with every request, as ``Authorization: Bearer …``.
The environment is handed over by the agent, over mutual TLS and a pipe. It is a secret: it belongs into no log.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN = "HOROVOD_GLOO_RENDEZVOUS_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable of a rank."""
_SCHEME = "Bearer "


class Tokens:
    """Makes the tokens of one rendezvous server, and knows them again; those of another one are worth nothing here."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, host: str) -> str:
        """The token of this host, in Horovod's sense: the id of a rank."""
        return f"{host}.{hmac.new(self._secret, host.encode(), hashlib.sha256).hexdigest()}"

    def host(self, authorization: str) -> str | None:
        """Whose token this value of the header ``Authorization`` carries; None: nobody's."""
        token = authorization.removeprefix(_SCHEME)
        host = token.rpartition(".")[0]
        return host if hmac.compare_digest(self.of(host).encode(), token.encode()) else None


def authorization(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"{_SCHEME}{token}"}
