"""Which pod an agent is in, by the token that Kubernetes has bound to that pod.

All pods of a run have the same certificate, so that shows only that an agent belongs to the run. The token shows in
which pod it is. It is valid for an hour, and the kubelet renews it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from elastic_runtime.errors import ElasticError, InvalidDocument, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.tokens import Bound, Keys, key_id, verify
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run import runobjects

log = logging.getLogger(__name__)

MOST_PROVED = 1000
"""Tokens of agents that are being let in, or were turned away for another reason."""

NOT_SERVED = ". Kubernetes serves them from 1.20 on, unless its feature ServiceAccountIssuerDiscovery is off"
NO_TOKEN = (
    f"it shows no token, though its pod has one in {runobjects.IDENTITY_TOKEN}. If its user cannot read that file, set "
    "fs_group"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """Pod of a worker, as the launcher expects it."""

    namespace: str
    uid: str | None
    """None: the pod is not known, as there is no news of pods."""


class Identities:
    """Verify agents' tokens. If the API server's keys cannot be read, log one warning and accept certificates alone.

    Args:
        client: of the run's namespace.
        audience: for whom the tokens are.
        expected: what is known of the pod of that name.
        now: monotonic seconds.
    """

    def __init__(
        self, client: Client, audience: str, expected: Callable[[str], Expected], now: Callable[[], float]
    ) -> None:
        self._audience = audience
        self._expected = expected
        self._keys = Keys(client.token_keys, now)
        self._unread = False
        self._proved: dict[str, str] = {}
        """By digest of a token: the uid that it is bound to, of agents that may be let in now."""
        self._shown: dict[str, str] = {}
        """By pod: the uid that the agent which is connected has shown while there was no news of that pod."""

    async def prove(self, hello: Hello) -> str | None:
        """Return why the agent cannot be in the pod that it claims; None: it may connect."""
        try:
            key = await self._keys.find(key_id(hello.token))
        except ElasticError as error:
            self._log_error(error)
            return None
        self._log_error(None)
        expected = self._expected(hello.worker)  # Now, as news of pods may have come meanwhile.
        if not hello.token:
            return NO_TOKEN
        if key is None:
            return "its token is signed with no key that the API server publishes"
        try:
            bound = verify(hello.token, key, self._audience)
            problem = mismatch(bound, hello.worker, expected)
            if problem is None and expected.uid is None:
                self._proved[_digest(hello)] = bound.uid
                if len(self._proved) > MOST_PROVED:
                    del self._proved[next(iter(self._proved))]
            return problem
        except InvalidDocument as error:
            return str(error)

    def admit(self, hello: Hello) -> None:
        """This agent, which was proved, is connected now, and no other one of its pod is."""
        self.forget(hello.worker)
        if (uid := self._proved.pop(_digest(hello), None)) is not None:
            self._shown[hello.worker] = uid

    def forget(self, pod: str) -> None:
        """Its agent is connected no more."""
        self._shown.pop(pod, None)

    def confirms(self, pod: str, uid: str) -> bool:
        """Whether an agent that was let in before there was news of its pod is in the pod that has that uid."""
        return self._shown.get(pod, uid) == uid

    async def prepare(self) -> None:
        """Ask for the keys before the first agent connects, which would have to wait for them."""
        with contextlib.suppress(ElasticError):  # It is told when an agent connects, if it holds until then.
            await self._keys.find(None)

    async def close(self) -> None:
        """Ask for keys no more."""
        await self._keys.close()

    def _log_error(self, error: ElasticError | None) -> None:
        if error is None and self._unread:
            log.info("the API server's keys can be read now: agents that connect have to show a token of their pod")
        if error is not None and not self._unread:
            log.warning(
                "agents are known by the run's certificate alone, as the keys that verify their pods' tokens cannot be "
                "read: %s%s",
                printable(error, LONG),
                NOT_SERVED if isinstance(error, RunNotFound) else "",
            )
        self._unread = error is not None


def _digest(hello: Hello) -> str:
    return hashlib.sha256(hello.token.encode()).hexdigest()  # Tokens are kept nowhere.


def mismatch(bound: Bound, worker: str, expected: Expected) -> str | None:
    """Why an agent is not in the pod that a token is bound to; None: it is."""
    if bound.namespace != expected.namespace:
        return f"its token is of a pod in namespace {printable(bound.namespace, 80)}"
    if bound.pod != worker:
        return f"its token is of pod {printable(bound.pod, 80)}"
    if expected.uid not in (None, bound.uid):
        return "its token is of an earlier pod of that name"
    return None
