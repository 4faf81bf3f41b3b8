"""Tokens of service accounts, verified without asking anybody but for the API server's public keys.

An API server signs the token that a kubelet gives to a pod, and publishes the keys by which anybody can check that
(``/openid/v1/jwks``; the ClusterRole ``system:service-account-issuer-discovery`` lets every service account read them,
unless somebody has changed that). Signatures and times are PyJWT's to check: https://pyjwt.readthedocs.io
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument, InvalidSettings, PermanentError
from elastic_runtime.kubernetes.objects import Json

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"})
"""Algorithms that sign with a private key. A reader of the public key could forge signatures of any other algorithm."""
MAX_KEYS = 100
"""Keys of an API server that count; most have one, and two while it is replaced."""
PAUSE = 30.0
"""Seconds between two requests for the keys, at least, however many tokens name a key that is not known."""
REFUSED_PAUSE = 300.0
"""The same where the API server refuses, or PyJWT is missing: rights may be given later."""
MAX_AGE = 3600.0
"""Seconds after which they are asked for again, so that a key that was withdrawn is not believed for ever."""
DEADLINE = 5.0
"""Seconds that the API server has to answer; whoever shows a token waits for that."""
LEEWAY = 60.0
"""Seconds by which the clocks of the API server and of this machine may differ."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of the API server."""

    algorithm: str
    """Algorithm of the tokens that it verifies. Others are refused."""
    key: Any
    """Public key, of the cryptography package."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod that a token is bound to."""

    namespace: str
    pod: str
    uid: str


class Keys:
    """The public keys of an API server, kept.

    Args:
        ask: reads its JSON Web Key Set.
        now: monotonic seconds.
    """

    def __init__(self, ask: Callable[[], Awaitable[Json]], now: Callable[[], float]) -> None:
        self._ask, self._now = ask, now
        self._keys: Mapping[str, Key] = {}
        self._asked = self._read = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._trouble: ElasticError | None = None

    async def find(self, kid: str | None) -> Key | None:
        """The key of that id; None: there is none, or no id was given.

        Raises:
            ElasticError: no keys could be read so far. Once they could, they are kept while the API server is away.
        """
        now, unknown = self._now(), not self._keys or (kid is not None and kid not in self._keys)
        pause = REFUSED_PAUSE if isinstance(self._trouble, PermanentError) else PAUSE
        if (unknown or now - self._read > MAX_AGE) and now - self._asked >= pause and self._asking is None:
            self._asked = now
            # A task of its own: its first caller may be cut off while others wait for the same answer.
            self._asking = asyncio.create_task(self._renew())
        if self._asking is not None and unknown:
            await asyncio.shield(self._asking)
        if not self._keys and self._trouble:
            raise self._trouble
        return self._keys.get(kid) if kid is not None else None

    async def close(self) -> None:
        """Cancel the request for keys."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await self._ask()
            keys = read_keys(answer)
            if not keys:
                raise InvalidDocument("the API server publishes no key that this package can use")
        except TimeoutError:
            self._trouble = ClusterUnavailable(f"the API server has not answered for {DEADLINE:.0f} s")
        except ElasticError as error:
            self._trouble = error
        else:
            self._keys, self._read, self._trouble = keys, self._now(), None
        finally:
            self._asking = None


def read_keys(answer: object) -> dict[str, Key]:
    """Those of a JSON Web Key Set (RFC 7517) that can be used, by their ids; others are left out.

    Raises:
        InvalidSettings: PyJWT is not installed.
        InvalidDocument: it is none.
    """
    jwt = _jwt()
    listed = answer.get("keys") if isinstance(answer, Mapping) else None
    if not isinstance(listed, list):
        raise InvalidDocument("the API server's keys are not a JSON Web Key Set")
    found: dict[str, Key] = {}
    for each in listed[:MAX_KEYS]:
        if not _usable(each):
            continue
        with contextlib.suppress(jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
            parsed = jwt.PyJWK.from_dict(each)
            if parsed.algorithm_name in ALGORITHMS:  # Where it was not given, it follows from the kind of key.
                found[each["kid"]] = Key(parsed.algorithm_name, parsed.key)
    return found


def _usable(listed: object) -> bool:
    """Whether it is a key with an id, for signatures that count as far as it says."""
    if not isinstance(listed, dict) or not isinstance(listed.get("kid"), str):
        return False
    return "alg" not in listed or listed["alg"] in tuple(ALGORITHMS)


def key_id(token: str) -> str | None:
    """Return the id of the key that a token claims. None: there is none, or it is no token. Nothing is verified."""
    jwt = _jwt()
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return None
    return kid if isinstance(kid, str) else None


def verify(token: str, key: Key, audience: str) -> Bound:
    """The pod that a token is bound to.

    Args:
        token: as it was shown.
        key: that it is signed with.
        audience: whom it has to be for.

    Raises:
        InvalidDocument: it is not valid, or bound to no pod; in words without any of it.
    """
    jwt = _jwt()
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=audience,
            leeway=LEEWAY,
            options={"require": ["exp", "aud"]},
        )
    except jwt.ExpiredSignatureError:
        raise InvalidDocument("its token has expired") from None
    except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
        raise InvalidDocument("its token is not for this run") from None
    except jwt.ImmatureSignatureError:
        raise InvalidDocument("its token is not valid yet: compare the nodes' clocks") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidDocument("its token is not one that the API server has signed") from None
    return _bound(claims.get("kubernetes.io"))


def _bound(claims: object) -> Bound:
    pod = claims.get("pod") if isinstance(claims, dict) else None
    if isinstance(claims, dict) and isinstance(pod, dict):
        namespace, name, uid = claims.get("namespace"), pod.get("name"), pod.get("uid")
        if isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str):
            return Bound(namespace, name, uid)
    raise InvalidDocument("its token is bound to no pod")


def _jwt() -> Any:
    try:
        import jwt
    except ImportError:
        remedy = "Install elastic-runtime[kubernetes] in the launcher's image"
        raise InvalidSettings("image", "PyJWT is not installed there", remedy) from None
    return jwt
