"""Machines that join by hand: who gets a certificate, and for what it is good."""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from elastic_runtime import __version__
from elastic_runtime.agent import join
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings, PermanentError
from elastic_runtime.launcher import agents
from elastic_runtime.launcher.joining import INVALID, REQUEST
from elastic_runtime.net import certificates
from elastic_runtime.net.certificates import JOIN, LAUNCHER, agent_context, join_client_context
from elastic_runtime.net.framing import decode_line, encode_line
from elastic_runtime.protocol import joining
from elastic_runtime.protocol.joining import JoinRefused, JoinRequest
from elastic_runtime.protocol.wire import Hello, encode
from elastic_runtime.run.join import JoinToken
from tests.unit.runtime.agent_bench import SOON, Desk, listening
from tests.unit.runtime.join_bench import RUN, JoinableRun, own_request

HERE = "127.0.0.1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JoinableRun:
    monkeypatch.setattr(agents, "AGAIN", 0.02)
    return JoinableRun(tmp_path)


def with_launcher(run: JoinableRun, test: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with listening(run.tls, RUN, joining=run.joining, expected=lambda name: name == "worker-0") as desk:
            await test(desk)

    asyncio.run(main())


@asynccontextmanager
async def dialled(desk: Desk, context: ssl.SSLContext) -> AsyncIterator[tuple[asyncio.StreamReader, StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port, ssl=context, server_hostname=LAUNCHER)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def connects(desk: Desk, tls: Path, name: str) -> bool:
    """Whether an agent with these certificates is let in under that name."""
    return await asked(desk, encode(Hello(name, "node", 1, 1, "lo")), agent_context(tls)) != b""


async def asked(desk: Desk, line: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """What is answered to a line, by default of somebody who wants to join."""
    try:
        async with asyncio.timeout(SOON), dialled(desk, context or join_client_context()) as (reader, writer):
            writer.write(line)
            return await reader.readline()
    except OSError:
        return b""


def refused(line: bytes) -> str:
    answer = joining.decode(decode_line(line))
    assert isinstance(answer, JoinRefused)
    return answer.reason


def request(token: JoinToken, certificate: str, runtime: str = __version__) -> bytes:
    return joining.encode(JoinRequest("run", token.secret.hex(), certificate, runtime, HERE, HERE))


def test_a_token_is_good_for_one_certificate_of_one_worker(run: JoinableRun) -> None:
    async def test(desk: Desk) -> None:
        token = run.token()
        settings = await run.join(desk.port, token)
        assert (settings.worker, settings.slots, settings.address) == ("joined-1", 1, "127.0.0.1")
        assert await connects(desk, settings.tls, "joined-1")
        for other in ("worker-0", "joined-2", "agent"):
            assert not await connects(desk, settings.tls, other)
        assert not await connects(desk, run.tls, "joined-1"), "with the certificate of the place's own agents"
        with pytest.raises(PermanentError, match="was used"):
            await run.join(desk.port, token)
        assert (await run.join(desk.port, run.token())).worker == "joined-2"

    with_launcher(run, test)


def test_of_two_who_show_one_token_at_once_one_joins(run: JoinableRun) -> None:
    async def test(desk: Desk) -> None:
        token = run.token()
        both = await asyncio.gather(*(run.join(desk.port, token) for _ in range(2)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in both) == ["AgentSettings", "PermanentError"]

    with_launcher(run, test)


def test_an_expired_token_and_one_that_was_never_offered_are_refused_alike(run: JoinableRun) -> None:
    async def test(desk: Desk) -> None:
        late = run.token(timedelta(minutes=5))
        run.now += timedelta(minutes=5)
        for token in (late, JoinToken.create(late.pin)):
            assert refused(await asked(desk, request(token, own_request()))) == INVALID

    with_launcher(run, test)


def test_nothing_is_sent_to_a_launcher_that_the_token_is_not_for(
    run: JoinableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second").mkdir()
    other = JoinableRun(tmp_path / "second")
    sent: list[object] = []
    monkeypatch.setattr(join, "encode", sent.append)

    async def test(desk: Desk) -> None:
        with pytest.raises(InvalidSettings, match="not the one that the token is for"):
            await run.join(desk.port, other.token())
        assert sent == []

    with_launcher(run, test)


def test_a_token_is_not_used_up_by_a_refusal(run: JoinableRun) -> None:
    async def test(desk: Desk) -> None:
        token = run.token()
        old = await asked(desk, request(token, own_request(), "0.0.1"))
        assert (
            refused(old) == f"its elastic-runtime is 0.0.1, and the run's is {__version__}: install {__version__} there"
        )
        with pytest.raises(PermanentError, match="for the run run"):
            await run.join(desk.port, token, run="another")
        assert (await run.join(desk.port, token)).worker == "joined-1"

    with_launcher(run, test)


def with_names() -> x509.CertificateSigningRequestBuilder:
    return x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "launcher")])
    )


def with_extension() -> x509.CertificateSigningRequestBuilder:
    bare = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return bare.add_extension(x509.SubjectAlternativeName([x509.DNSName("agent")]), critical=False)


def pem(asked: x509.CertificateSigningRequest) -> str:
    return asked.public_bytes(serialization.Encoding.PEM).decode()


def spoilt() -> str:
    """Its signature is not of its key."""
    plain = bytearray(x509.load_pem_x509_csr(own_request().encode()).public_bytes(serialization.Encoding.DER))
    plain[-1] ^= 1
    return pem(x509.load_der_x509_csr(bytes(plain)))


REQUESTS = {
    "that names the launcher": pem(with_names().sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())),
    "with a name besides": pem(with_extension().sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())),
    "with another kind of key": pem(
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    ),
    "with another curve": certificates.request_for(ec.generate_private_key(ec.SECP384R1())),
    "that is not signed with its key": spoilt(),
    "that is none": "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    "that is empty": "",
    "of half a character": "\ud800",
}


@pytest.mark.parametrize("certificate", REQUESTS.values(), ids=REQUESTS)
def test_a_request_for_another_certificate_is_refused(run: JoinableRun, certificate: str) -> None:
    answer = run.joining.answer(JoinRequest("run", run.token().secret.hex(), certificate, __version__, HERE, HERE))
    assert isinstance(answer, JoinRefused)
    assert answer.reason.startswith("the request for a certificate")


def test_what_is_no_request_or_too_long_gets_no_answer_and_its_text_is_not_in_the_log(
    run: JoinableRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(desk: Desk) -> None:
        secret = run.token().secret.hex()
        for line in (
            b'{"secret":"' + secret.encode() + b"\n",
            encode_line({"type": "join_request", "secret": secret}),
            encode_line({"type": "hello", "secret": secret}),
            b'{"secret":"' + secret.encode() * (REQUEST // 64) + b'"}\n',
        ):
            assert await asked(desk, line) == b""
        assert secret not in caplog.text
        assert "sent no request that can be read" in caplog.text

    with_launcher(run, test)


def test_a_grant_leaves_neither_token_nor_key_in_the_log_or_in_the_runs_folder(
    run: JoinableRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(desk: Desk) -> None:
        token = run.token()
        texts = [each.read_text() for each in run.folder.tokens.iterdir()] + [
            each.name for each in run.folder.tokens.iterdir()
        ]
        assert not any(token.secret.hex() in text or token.text() in text for text in texts)
        settings = await run.join(desk.port, token)
        assert list(run.folder.tokens.iterdir()) == []
        assert token.secret.hex() not in caplog.text
        assert token.text() not in caplog.text
        assert not any((settings.tls / "agent.key").read_bytes() == each.read_bytes() for each in run.tls.iterdir())
        assert repr(token).count(token.secret.hex()) == 0

    with_launcher(run, test)


def test_a_certificate_is_of_no_use_once_its_worker_has_left(run: JoinableRun) -> None:
    async def test(desk: Desk) -> None:
        settings = await run.join(desk.port, run.token())
        assert await connects(desk, settings.tls, "joined-1")
        await desk.until(lambda: len(desk.ends) == 1)
        assert await connects(desk, settings.tls, "joined-1"), "a connection that is lost may be made again"
        await desk.until(lambda: len(desk.ends) == 2)
        run.joining.revoke(desk.ends[-1])
        assert not await connects(desk, settings.tls, "joined-1")

    with_launcher(run, test)


def test_where_joining_is_off_nobody_is_asked_for_a_token(run: JoinableRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "TRIES", 1)

    async def main() -> None:
        async with listening(run.tls, RUN) as desk:
            with pytest.raises(ClusterUnavailable):
                await run.join(desk.port, run.token())
            assert desk.arrivals == []

    asyncio.run(main())


def test_who_joins_is_no_agent_by_that(run: JoinableRun) -> None:
    """The other protocol demands a certificate still, whatever else the ClientHello offers."""

    async def test(desk: Desk) -> None:
        assert await asked(desk, encode(Hello("worker-0", "node", 1, 1, "lo"))) == b""
        both = join_client_context()
        both.set_alpn_protocols([JOIN, certificates.watchword(run.tls)])
        assert await asked(desk, encode(Hello("worker-0", "node", 1, 1, "lo")), both) == b""
        assert desk.arrivals == []

    with_launcher(run, test)


def test_a_flood_of_strangers_keeps_nobody_from_joining(run: JoinableRun) -> None:
    """Of those who ask with wrong tokens, and of those who ask for nothing, from the same address."""

    async def test(desk: Desk) -> None:
        async def guess() -> None:
            while True:
                await asked(desk, request(JoinToken.create(b"x" * 32), own_request()))

        async def hold() -> None:
            with suppress(OSError):
                async with dialled(desk, join_client_context()) as (reader, _):
                    await reader.read()

        flood = [asyncio.create_task(each()) for each in (*[guess] * 5, *[hold] * 100)]
        try:
            for number in range(1, 4):
                async with asyncio.timeout(SOON):
                    assert (await run.join(desk.port, run.token())).worker == f"joined-{number}"
        finally:
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)

    with_launcher(run, test)
