"""A compromised worker, which has the run's certificate as all have, claims to be another one: it has not its token."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.kubernetes import tokens
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.kubernetes.tokens import key_id
from elastic_runtime.launcher import agents, loop
from elastic_runtime.launcher.kubernetes.identities import Expected, Identities
from elastic_runtime.launcher.kubernetes.pods import OUTLIVING
from elastic_runtime.net import certificates
from elastic_runtime.protocol.plausible import TOKEN, check_hello
from elastic_runtime.protocol.wire import Heartbeat, Hello, decode, encode
from elastic_runtime.run import runobjects
from elastic_runtime.run.status import Status, WorkerState
from tests.unit.runtime.agent_bench import SOON
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import Watched, pod
from tests.unit.runtime.kubernetes_platform_bench import MOMENT, within
from tests.unit.runtime.kubernetes_platform_bench import RUN as WATCHED
from tests.unit.runtime.launcher_bench import RUN, Place, Worker, launched
from tests.unit.runtime.token_issuer import Issuer, claims, private_key

AUDIENCE = runobjects.audience(RUN.name, RUN.uid)
UIDS = {"w": "uid-of-w", "victim": "uid-of-victim", "victim-2": "uid-of-victim-2"}
ISSUER = Issuer("RS256")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


@pytest.fixture(autouse=True)
def does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "AGAIN", 0.02)
    monkeypatch.setattr(loop, "FIGURES_INTERVAL", 0.02)


def of(pod: str, **others: Any) -> dict[str, Any]:
    """What the token of a pod holds."""
    return claims(pod, UIDS[pod], AUDIENCE) | others


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def unsigned(algorithm: str) -> str:
    """Not signed."""
    return f"{encoded({'alg': algorithm, 'typ': 'JWT', 'kid': 'first'})}.{encoded(of('victim'))}."


def by_public_key(form: tuple[Encoding, PublicFormat] | None) -> str:
    """Signed by what everybody can read, as if it were a shared secret."""
    public: Any = private_key("RS256").public_key()  # type: ignore[union-attr]  # an RSA key has one
    secret = public.public_bytes(*form) if form else json.dumps(ISSUER.key_set()["keys"][0]).encode()
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': 'first'})}.{encoded(of('victim'))}"
    digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def own_key_in_the_header() -> str:
    """Signed with a key of its own, which it brings along."""
    stranger: Any = private_key("RS256", 9)
    key = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(stranger.public_key()))
    return jwt.encode(
        of("victim"), stranger, "RS256", headers={"kid": "first", "jwk": key, "jku": "https://evil.example"}
    )


def exchanged_content() -> str:
    """Of its own token the signature, of another one the content."""
    head, _, signature = ISSUER.sign(of("w")).split(".")
    return f"{head}.{encoded(of('victim'))}.{signature}"


def without(claim: str) -> dict[str, Any]:
    return {key: each for key, each in of("victim").items() if key != claim}


UNSIGNED = "its token is not one that the API server has signed"
NO_KEY = "its token is signed with no key that the API server publishes"
NOT_OURS = "its token is not for this run"
UNBOUND = "its token is bound to no pod"
ATTACKS = {
    "another pod's": (ISSUER.sign(of("w")), "its token is of pod w"),
    "an earlier pod's": (ISSUER.sign(claims("victim", "old-uid", AUDIENCE)), "its token is of an earlier pod"),
    "of another namespace": (
        ISSUER.sign(claims("victim", UIDS["victim"], AUDIENCE, namespace="other\nlauncher: x")),
        "its token is of a pod in namespace other\\x0alauncher: x",
    ),
    "for another run": (ISSUER.sign(claims("victim", UIDS["victim"], runobjects.audience("other", "uid"))), NOT_OURS),
    "for an earlier run of the name": (
        ISSUER.sign(claims("victim", UIDS["victim"], runobjects.audience(RUN.name, "earlier"))),
        NOT_OURS,
    ),
    "for the API server": (ISSUER.sign(claims("victim", UIDS["victim"], "https://kubernetes.default.svc")), NOT_OURS),
    "for nobody": (ISSUER.sign(without("aud")), NOT_OURS),
    "expired": (ISSUER.sign(claims("victim", UIDS["victim"], AUDIENCE, seconds=-120.0)), "its token has expired"),
    "never expiring": (ISSUER.sign(without("exp")), NOT_OURS),
    "expiring at a time that is none": (ISSUER.sign(of("victim", exp="tomorrow")), UNSIGNED),
    "of tomorrow": (ISSUER.sign(of("victim", nbf=2**40)), "its token is not valid yet"),
    "bound to no pod": (ISSUER.sign(without("kubernetes.io")), UNBOUND),
    "bound to nonsense": (
        ISSUER.sign(of("victim", **{"kubernetes.io": {"namespace": "ns", "pod": ["victim"]}})),
        UNBOUND,
    ),
    "forged signature": (Issuer("RS256", {"first": 9}).sign(of("victim")), UNSIGNED),
    "exchanged content": (exchanged_content(), UNSIGNED),
    "own key": (own_key_in_the_header(), UNSIGNED),
    "alg none": (unsigned("none"), UNSIGNED),
    "alg None": (unsigned("None"), UNSIGNED),
    "no alg": (unsigned(""), UNSIGNED),
    "HS256 by the PEM": (by_public_key((Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)), UNSIGNED),
    "HS256 by the DER": (by_public_key((Encoding.DER, PublicFormat.SubjectPublicKeyInfo)), UNSIGNED),
    "HS256 by the JWK": (by_public_key(None), UNSIGNED),
    "another algorithm of the same key": (
        jwt.encode(of("victim"), private_key("RS256"), "PS256", headers={"kid": "first"}),  # type: ignore[arg-type]
        UNSIGNED,
    ),
    "unknown key": (Issuer("RS256", {"another": 9}).sign(of("victim")), NO_KEY),
    "no key": (jwt.encode(of("victim"), private_key("RS256"), "RS256"), NO_KEY),  # type: ignore[arg-type]
    "no token": ("nonsense", NO_KEY),
    "deep header": (base64.urlsafe_b64encode(b"[" * 4000).decode().rstrip("=") + ".e30.e30", NO_KEY),
    "missing": ("", "it shows no token"),
}


def expected(worker: str) -> Expected:
    return Expected("ns", UIDS.get(worker))


def guarded(tls: Path, test: Callable[[Place, Worker, FakePlace], Awaitable[None]]) -> Place:
    """A launcher that asks for tokens; the worker that has come shows its own."""

    async def run(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        server = FakePlace()
        server.issuer = ISSUER
        identities = Identities(server.api, AUDIENCE, expected, asyncio.get_running_loop().time)
        place.prove_ = identities.prove
        try:
            await test(place, worker, server)
            assert not running.done()
            # And the one that is there is still listened to.
            worker.writer.write(encode(Heartbeat(1.0, 4711)))
            await place.until(lambda status: any(each.memory_bytes == 4711 for each in status.workers))
        finally:
            await identities.close()

    return launched(tls, run)


async def refused(place: Place, tls: Path, token: str, name: str = "victim") -> None:
    """Dial and claim to be another worker, and be hung up on."""
    liar = await Worker.dial(tls, place.port, name, token)
    try:
        async with asyncio.timeout(SOON):
            with contextlib.suppress(OSError):
                assert await liar.hear() is None
    finally:
        liar.writer.transport.abort()
    assert alive(place.published[-1]) == {"w"}


def alive(status: Status) -> set[str]:
    """Workers that are connected."""
    return {each.name for each in status.workers if each.state is not WorkerState.LOST}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_worker_that_claims_to_be_another_one_is_refused_and_the_others_go_on(
    tls: Path, attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    token, words = ATTACKS[attack]

    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        await refused(place, tls, token)

    guarded(tls, test)
    [told] = [each for each in caplog.messages if "refusing an agent that calls itself victim" in each]
    assert words in told
    assert len(told.splitlines()) == 1
    assert not token or token not in caplog.text


def test_the_worker_itself_is_let_in_and_its_token_is_kept_nowhere(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = ISSUER.sign(of("victim"))

    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        await refused(place, tls, ISSUER.sign(of("w")))
        other = await Worker.dial(tls, place.port, "victim", token)
        await place.until(lambda status: alive(status) == {"w", "victim"})
        assert token not in repr(place.published)
        other.writer.transport.abort()
        await place.until(lambda status: alive(status) == {"w"})
        # It has been there since, so that the next attempt is told of anew.
        await refused(place, tls, ISSUER.sign(of("w")))

    with caplog.at_level(logging.DEBUG):
        guarded(tls, test)
    assert token not in caplog.text
    assert len([each for each in caplog.messages if "refusing an agent that calls itself victim" in each]) == 2
    hello = Hello("victim", "node", 1, 1, "lo", token=token)
    assert token not in repr(hello) + str(hello)


def test_one_that_tries_again_and_again_is_told_of_once(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        for token in (ISSUER.sign(of("w")), "nonsense", ""):
            await asyncio.gather(*(refused(place, tls, token, name) for name in ("victim", "victim-2")))

    guarded(tls, test)
    assert len([each for each in caplog.messages if "refusing an agent" in each]) == 2


def test_one_whose_pod_is_gone_is_hung_up_on(tls: Path) -> None:
    """It has dialled from elsewhere, with what was in the pod."""

    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        other = await Worker.dial(tls, place.port, "victim", ISSUER.sign(of("victim")))
        await place.until(lambda status: alive(status) == {"w", "victim"})
        place.strays["victim"] = "its pod is gone"
        place.on_change()
        status = await place.until(lambda status: alive(status) == {"w"})
        assert "its pod is gone" in repr(status)
        other.writer.transport.abort()

    guarded(tls, test)


def test_an_agent_does_not_outlive_its_pod_for_long() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        await place.create(PODS, pod(WATCHED, "victim", phase="Running"))
        await asyncio.sleep(MOMENT)
        watched.workers.came("victim")
        assert watched.workers.stray("victim") is None
        await place.remove(PODS, "victim")
        await asyncio.sleep(MOMENT)
        assert not watched.workers.expects("victim")
        assert watched.workers.stray("victim") is None, "deleted by force, it may still write a checkpoint"
        await asyncio.sleep(OUTLIVING + 1)
        assert watched.workers.stray("victim.r3") == "its pod is gone"
        watched.workers.gone("victim.r3")
        assert watched.workers.stray("victim.r4") is None, "another connection, another time"

    within(test)


def test_while_there_is_no_news_of_pods_nobody_is_hung_up_on() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        await place.go_away()
        await asyncio.sleep(OUTLIVING)
        for _unused in range(2):
            assert watched.workers.stray("newer-than-the-news") is None
            await asyncio.sleep(2 * OUTLIVING)

    within(test)


def test_an_earlier_pod_s_token_is_found_out_when_there_is_news() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        audience = runobjects.audience(WATCHED.name, WATCHED.uid)
        for _unused in range(2):
            made = await place.create(PODS, pod(WATCHED, "victim", phase="Running"))
            hello = Hello("victim", "n", 7, 1, "lo", token=await place.token("victim", audience))
            await place.remove(PODS, "victim")
            await asyncio.sleep(MOMENT)
        assert await watched.workers.prove(hello) is None, "as long as nobody knows better"
        watched.workers.admit(hello)
        again = await place.create(PODS, pod(WATCHED, "victim", phase="Running"))
        assert again.uid != made.uid
        await asyncio.sleep(MOMENT)
        assert watched.workers.stray("victim") == "its token was of an earlier pod of that name"

    within(test)


def test_an_earlier_pod_s_token_that_was_not_let_in_is_not_held_against_the_agent_that_is() -> None:
    """While there is no news of pods, a holder of the earlier pod's token is turned away as a second agent."""
    known: dict[str, str] = {}

    async def test() -> None:
        server = FakePlace()
        server.issuer = ISSUER
        clock = asyncio.get_running_loop().time
        identities = Identities(server.api, AUDIENCE, lambda worker: Expected("ns", known.get(worker)), clock)

        def hello(uid: str) -> Hello:
            return Hello("victim", "n", 7, 1, "lo", token=ISSUER.sign(claims("victim", uid, AUDIENCE)))

        try:
            assert await identities.prove(hello("new")) is None
            identities.admit(hello("new"))
            assert await identities.prove(hello("old")) is None, "as long as nobody knows better"
            assert identities.confirms("victim", "new")
            assert not identities.confirms("victim", "newer")

            identities.forget("victim")
            identities.admit(hello("old"))
            assert not identities.confirms("victim", "new")
            identities.forget("victim")
            known["victim"] = "new"
            assert await identities.prove(hello("new")) is None
            identities.admit(hello("new"))
            assert identities.confirms("victim", "new"), "for good, because of what another one has shown"
        finally:
            await identities.close()

    asyncio.run(test())


def test_a_flood_of_unknown_keys_asks_the_api_server_once(tls: Path) -> None:
    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        strangers = [Issuer("RS256", {f"kid-{number}": 9}).sign(of("victim")) for number in range(20)]
        await asyncio.gather(*(refused(place, tls, token) for token in strangers))
        assert server.keys_asked == 1

    guarded(tls, test)


@pytest.mark.parametrize("token", ["x" * (TOKEN + 1), "a\nb", "a b", "é"])
def test_what_is_no_token_is_refused_before_it_is_looked_at(token: str) -> None:
    with pytest.raises(InvalidDocument) as error:
        check_hello(Hello("w", "node", 1, 1, "lo", token=token), 1)
    assert token not in str(error.value)
    check_hello(Hello("w", "node", 1, 1, "lo", token="x" * TOKEN), 1)


@pytest.mark.parametrize("token", [7, None, ["secret-word"], {"secret-word": 1}, 1e9, True, "\ud800"])
def test_a_token_that_is_no_text_is_refused_without_being_quoted(token: object) -> None:
    plain = {"type": "hello", "worker": "w", "node": "n", "pid": 1, "slots": 1, "interface": "lo", "token": token}
    with pytest.raises(InvalidDocument) as error:
        decode(plain)
    assert "secret-word" not in str(error.value)


@pytest.mark.parametrize("size", [TOKEN + 1, 100_000, 5_000_000])
def test_a_giant_token_costs_its_author_the_connection(tls: Path, size: int) -> None:
    async def test(place: Place, worker: Worker, server: FakePlace) -> None:
        with contextlib.suppress(OSError):
            await refused(place, tls, "x" * size)
        assert server.keys_asked == 0

    guarded(tls, test)


def test_no_header_makes_an_error_of_another_kind() -> None:
    heads: list[object] = [[], 7, {"kid": 7}, {"kid": ["x"]}, {"alg": 7}, {"kid": "first", "alg": [1]}, {"crit": ["x"]}]
    for head in heads:
        key_id(f"{encoded(head)}.e30.e30")
    for token in ("", ".", "..", "...", "a.b.c", "=.=.=", "é.e30.x", "9" * TOKEN, "." * TOKEN):
        assert key_id(token) is None
    keys = tokens.read_keys(ISSUER.key_set())
    for head in heads:
        with pytest.raises(InvalidDocument):
            tokens.verify(f"{encoded(head)}.e30.e30", keys["first"], AUDIENCE)
