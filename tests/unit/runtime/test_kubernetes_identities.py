"""Which pod an agent is in, by its pod's token: when it is asked for, and what happens where that cannot be checked.

What is refused however it is made up: tests/security/runtime/test_forged_identities.py.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from elastic_runtime.kubernetes import tokens
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.kubernetes.tokens import read_keys
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run import runobjects
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import Watched, pod
from tests.unit.runtime.kubernetes_platform_bench import MOMENT, RUN, within
from tests.unit.runtime.token_issuer import Issuer

AUDIENCE = runobjects.audience(RUN.name, RUN.uid)
UNCHECKED = "agents are known by the run's certificate alone"


async def come(place: FakePlace, name: str = "a") -> Hello:
    """A pod that is given a token, and what its agent says."""
    await place.create(PODS, pod(RUN, name, phase="Running"))
    await asyncio.sleep(MOMENT)
    return Hello(name, "n", 7, 1, "lo", token=await place.token(name, AUDIENCE))


def silent(hello: Hello) -> Hello:
    """As an agent says it that cannot read its token."""
    return Hello(hello.worker, hello.node, hello.pid, hello.slots, hello.interface)


class TestToken:
    @pytest.mark.parametrize("algorithm", ["ES256", "ES384", "RS256", "PS256"])
    def test_of_its_own_pod_lets_an_agent_connect(self, algorithm: str) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await asyncio.sleep(tokens.PAUSE)  # The keys of before have been asked for.
            place.issuer = Issuer(algorithm, {"second": 1})
            assert await watched.workers.prove(await come(place)) is None

        within(test)

    def test_is_asked_for(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            refusal = await watched.workers.prove(silent(await come(place)))
            assert refusal is not None
            assert "If its user cannot read that file, set fs_group" in refusal

        within(test)

    def test_is_asked_for_while_there_is_no_news_of_pods(self) -> None:
        async def test(_place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            assert await watched.workers.prove(Hello("new", "n", 7, 1, "lo")) is not None

        within(test)

    def test_of_a_pod_that_there_is_no_news_of_is_believed(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            hello = await come(place)
            await place.remove(PODS, "a")
            await asyncio.sleep(MOMENT)
            assert await watched.workers.prove(hello) is None

        within(test)


class TestKeys:
    def test_are_there_before_the_first_agent_connects(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            assert place.keys_asked == 1
            place.keys_held.clear()
            assert await watched.workers.prove(await come(place)) is None

        within(test)

    def test_that_are_new_are_asked_for(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            first = await come(place)
            await asyncio.sleep(tokens.PAUSE)
            place.issuer.rotate("second")
            assert await watched.workers.prove(await come(place, "b")) is None
            assert await watched.workers.prove(first) == "its token is signed with no key that the API server publishes"

        within(test)

    def test_that_were_withdrawn_are_not_believed_for_long(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            first = await come(place)
            place.issuer.rotate("second")
            assert await watched.workers.prove(first) is None
            await asyncio.sleep(tokens.MAX_AGE)
            await watched.workers.prove(first)
            await asyncio.sleep(MOMENT)
            assert await watched.workers.prove(first) is not None

        within(test)

    def test_stay_while_the_api_server_is_away(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            hello = await come(place)
            await place.go_away()
            await asyncio.sleep(2 * tokens.MAX_AGE)
            for _unused in range(2):
                assert await watched.workers.prove(hello) is None
                assert await watched.workers.prove(silent(hello)) is not None
                await asyncio.sleep(tokens.PAUSE)

        within(test)
        assert UNCHECKED not in caplog.text

    @pytest.mark.parametrize(
        ("status", "words"),
        [
            (403, "Bind launcher to the ClusterRole system:service-account-issuer-discovery"),
            (404, "unless its feature ServiceAccountIssuerDiscovery is off"),
            (500, "cannot read the keys of service accounts' tokens"),
            (None, f"has not answered for {tokens.DEADLINE:.0f} s"),
        ],
    )
    def test_that_cannot_be_read_leave_it_to_the_certificate(
        self, status: int | None, words: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await unread(place, watched, status)
            hello = await come(place)
            began = asyncio.get_running_loop().time()
            for each in (hello, silent(hello), hello):
                assert await watched.workers.prove(each) is None
            assert asyncio.get_running_loop().time() - began < tokens.DEADLINE + MOMENT, "one waits, not each"

        with caplog.at_level(logging.INFO):
            within(test)
        [told] = [each for each in caplog.messages if UNCHECKED in each]
        assert words in told

    def test_that_can_be_read_later_count_from_then_on(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await unread(place, watched, 403)
            hello = await come(place)
            assert await watched.workers.prove(silent(hello)) is None
            place.keys_refused = None
            await asyncio.sleep(tokens.REFUSED_PAUSE)
            assert await watched.workers.prove(silent(hello)) is not None
            assert await watched.workers.prove(hello) is None

        with caplog.at_level(logging.INFO):
            within(test)
        assert len([each for each in caplog.messages if "keys can be read now" in each]) == 1

    def test_are_not_asked_for_again_and_again(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            hello = await come(place)
            for number in range(200):
                forged = Hello("a", "n", 7, 1, "lo", token=Issuer(keys={f"kid-{number}": 7}).sign({"exp": 1}))
                assert await watched.workers.prove(forged) is not None
                await asyncio.sleep(0.5)
            assert place.keys_asked <= 1 + 100 / tokens.PAUSE + 1
            assert await watched.workers.prove(hello) is None

        within(test)

    def test_do_not_wait_for_somebody_who_was_cut_off(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await asyncio.sleep(tokens.PAUSE)
            place.issuer.rotate("second")
            place.keys_held.clear()
            hello = await come(place)
            first, second = (asyncio.create_task(watched.workers.prove(hello)) for _unused in range(2))
            await asyncio.sleep(MOMENT)
            first.cancel()
            place.keys_held.set()
            assert await second is None

        within(test)

    def test_need_pyjwt(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            hello = await come(place)
            monkeypatch.setitem(sys.modules, "jwt", None)
            await unread(place, watched, None)
            assert await watched.workers.prove(hello) is None

        within(test)
        assert "Install elastic-runtime[kubernetes] in the launcher's image" in caplog.text

    def test_of_other_kinds_are_left_out(self) -> None:
        [good] = Issuer("RS256").key_set()["keys"]
        public: Any = ec.generate_private_key(ec.SECP256K1()).public_key()
        curve: Any = jwt.get_algorithm_by_name("ES256K").to_jwk(public, as_dict=True)
        listed = [
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
            {"kty": "oct", "kid": "secret without a word", "k": "c2VjcmV0"},
            {"kty": "oct", "kid": "secret in disguise", "k": "c2VjcmV0", "alg": "ES256"},
            {"kty": "RSA", "kid": "list", "alg": ["RS256"]},
            {**good, "kid": 7},
            {**good, "kid": "hs", "alg": "HS256"},
            {**good, "kid": "none", "alg": "none"},
            {"kty": "EC", "kid": "curve", "crv": "P-0", "x": "AA", "y": "AA"},
            {"kty": "RSA", "kid": "half", "n": "AA"},
            curve | {"kid": "k1", "crv": "secp256k1"},
            "nonsense",
            good,
        ]
        assert list(read_keys({"keys": listed})) == ["first"]


async def unread(place: FakePlace, watched: Watched, status: int | None) -> None:
    """As if the keys had never been read; from now on they are refused, or not answered for."""
    watched.workers._pods.identities._keys = tokens.Keys(place.api.token_keys, asyncio.get_running_loop().time)
    place.keys_refused = status
    if status is None:
        place.keys_held.clear()
