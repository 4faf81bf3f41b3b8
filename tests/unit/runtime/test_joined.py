"""Workers that join by hand: their tokens, how many train, and what becomes of them in a run."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime import __version__
from elastic_runtime.agent.join import JoinArguments, join, parse_arguments
from elastic_runtime.agent.notices.clouds import NO_METADATA
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json
from elastic_runtime.engines.base import SessionState
from elastic_runtime.errors import Conflict, InvalidDocument, InvalidSettings
from elastic_runtime.launcher import __main__ as launcher
from elastic_runtime.launcher import loop
from elastic_runtime.launcher.__main__ import check_address
from elastic_runtime.launcher.agents import AgentServer
from elastic_runtime.launcher.decision.decide import choose_ranks
from elastic_runtime.launcher.decision.facts import HoldSize, ListRanks
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.launcher.kubernetes.join_tokens import RootTokens
from elastic_runtime.net import certificates
from elastic_runtime.protocol.joining import JoinGranted, JoinRequest
from elastic_runtime.protocol.wire import Ready, Release, encode
from elastic_runtime.run.join import (
    MAX_TOKENS,
    JoinSpec,
    JoinToken,
    OfferedToken,
    OfferedTokens,
    check_door,
    digest_of,
    is_joined,
    joined_name,
)
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, RunSpec
from elastic_runtime.run.status import EventKind, Status
from tests.unit.runtime.agent_bench import SOON, listening
from tests.unit.runtime.decide_bench import NOW, SETTLED, USUAL, A, B, C, decide_now, facts, session, settings, worker
from tests.unit.runtime.join_bench import NOON, RUN, JoinableRun, free_port, own_request
from tests.unit.runtime.launcher_bench import Place, Worker, launched
from tests.unit.runtime.test_launcher_place import TrainingSession, rank_started

J, K = (replace(worker(joined_name(number)), joined=True) for number in (1, 2))
TOKEN = JoinToken(bytes(32), bytes(range(32)))


class TestTokens:
    def test_is_read_as_it_was_written(self) -> None:
        assert JoinToken.parse(TOKEN.text()) == TOKEN
        assert JoinToken.create(b"p" * 32) != JoinToken.create(b"p" * 32)

    @given(st.one_of(st.text(), st.text().map("join-".__add__), st.binary(max_size=100).map(lambda raw: raw.hex())))
    def test_no_other_text_is_one(self, text: str) -> None:
        with pytest.raises(InvalidSettings) as refused:
            JoinToken.parse(text)
        assert len(text) < 12 or text not in str(refused.value)

    @given(st.integers(0, len(TOKEN.text()) - 1), st.characters())
    def test_one_with_another_character_is_another_or_none(self, at: int, character: str) -> None:
        text = TOKEN.text()[:at] + character + TOKEN.text()[at + 1 :]
        try:
            assert (JoinToken.parse(text) == TOKEN) == (text == TOKEN.text())
        except InvalidSettings:
            assert text != TOKEN.text()

    def test_can_be_used_once_and_until_it_expires(self, tmp_path: Path) -> None:
        run = RunDir(tmp_path / "run")
        run.create(RUN, "me")
        run.offer_token("a", NOON, timedelta(hours=1))
        run.offer_token("b", NOON, timedelta(hours=2))
        assert (run.has_token("a", NOON), run.has_token("c", NOON)) == (True, False)
        assert [run.take_token("a", NOON) for _ in range(2)] == [True, False]
        assert run.take_token("b", NOON + timedelta(hours=2)) is False
        assert list(run.tokens.iterdir()) == []

    def test_there_are_a_hundred_open_ones_at_most(self, tmp_path: Path) -> None:
        run = RunDir(tmp_path / "run")
        run.create(RUN, "me")
        for number in range(100):
            run.offer_token(str(number), NOON, timedelta(hours=1))
        with pytest.raises(Conflict, match="100 tokens of this run"):
            run.offer_token("more", NOON, timedelta(hours=1))
        run.offer_token("more", NOON + timedelta(hours=1), timedelta(hours=1))
        assert [each.name for each in run.tokens.iterdir()] == ["more"]

    def test_what_is_no_token_in_their_folder_is_none_and_stays(self, tmp_path: Path) -> None:
        run = RunDir(tmp_path / "run")
        run.create(RUN, "me")
        run.tokens.mkdir()
        (run.tokens / "a").write_text("tomorrow")
        (run.tokens / "b").write_text("2026-01-02T12:00:00")  # of no time zone
        (run.tokens / "c").symlink_to(run.path / "spec.json")
        (run.tokens / "d").mkdir()
        assert not any(run.take_token(name, NOON) for name in "abcd")
        assert len(list(run.tokens.iterdir())) == 4


class TestSettings:
    @pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "10.0.0.5:7443", "010.0.0.5", "host"])
    def test_the_address_is_that_of_one_machine(self, address: str) -> None:
        with pytest.raises(InvalidSettings, match=r"workers\.join\.address"):
            JoinSpec(address)

    @pytest.mark.parametrize("port", [0, 443, 65536])
    def test_the_port_needs_no_rights(self, port: int) -> None:
        with pytest.raises(InvalidSettings, match=r"workers\.join\.port"):
            JoinSpec("10.0.0.5", port)

    def test_a_run_of_exactly_the_wanted_size_cannot_be_joined(self) -> None:
        with pytest.raises(InvalidSettings, match=r"workers\.join"):
            RunSpec("run", "uid", ("true",), join=RUN.join, recovery=RecoverySpec(mode=RecoveryMode.FIXED))

    def test_an_address_of_another_machine_is_refused_where_the_launcher_starts(self) -> None:
        with pytest.raises(InvalidSettings, match=r"cannot listen on 192\.0\.2\.1, port 7443"):
            check_address(JoinSpec("192.0.2.1"), "torch")

    @pytest.mark.parametrize(("engine", "fits"), [("torch", True), ("torchrun", True), ("horovod", False)])
    def test_horovods_ranks_must_be_at_the_address_of_the_machines_name(
        self, run: JoinableRun, monkeypatch: pytest.MonkeyPatch, engine: str, fits: bool
    ) -> None:
        monkeypatch.setattr(launcher, "named_address", lambda: "192.0.2.7")
        monkeypatch.setattr(run.joining, "_spec", replace(RUN, engine=engine))
        asked = JoinRequest("run", run.token().secret.hex(), own_request(), __version__, "127.0.0.1", "192.0.2.7")
        assert isinstance(run.joining.answer(asked), JoinGranted) == fits
        with nullcontext() if fits else pytest.raises(InvalidSettings, match="resolves to 192"):
            check_address(JoinSpec("127.0.0.1", free_port()), engine)

    @pytest.mark.parametrize(
        ("words", "field"),
        [
            (("--at", "10.0.0.5", "--token", TOKEN.text()), "--at"),
            (("--at", ":7443", "--token", TOKEN.text()), "--at"),
            (("--at", "host:70000", "--token", TOKEN.text()), "--at"),
            (("--at", "host:7443"), "--token"),
            (("--at", "host:7443", "--token", TOKEN.text(), "--directory", "/nowhere"), "--directory"),
            (("--at", "host:7443", "--token", TOKEN.text(), "--metadata", "moon"), "metadata"),
        ],
    )
    def test_a_command_that_cannot_work_says_which_word(self, words: tuple[str, ...], field: str) -> None:
        with pytest.raises(InvalidSettings) as refused:
            parse_arguments(["run", *words])
        assert field in str(refused.value)

    def test_the_token_may_be_a_variable_which_ranks_do_not_get(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ELASTIC_JOIN_TOKEN", TOKEN.text())
        found = parse_arguments(["run", "--at", "[fd00::5]:7443"])
        assert (found.launcher, found.token) == (("fd00::5", 7443), TOKEN)
        with pytest.raises(InvalidSettings, match="--token"):
            parse_arguments(["run", "--at", "host:7443"])


class TestWhoTrains:
    """With 2 workers asked for, of 4 at most."""

    def test_those_that_joined_train_besides_those_that_are_asked_for(self) -> None:
        assert choose_ranks(facts(2, A, J, B, C), USUAL, NOW) == ("a", "joined-1", "b")

    def test_no_more_than_the_most(self) -> None:
        assert choose_ranks(facts(3, A, B, C, J, K), USUAL, NOW) == ("a", "b", "c", "joined-1")
        assert choose_ranks(facts(3, A, B, C, J), settings(maximum=3), NOW) == ("a", "b", "c")

    def test_one_takes_the_place_of_a_worker_that_is_missing_and_keeps_it(self) -> None:
        few = settings(maximum=2)
        assert choose_ranks(facts(2, A, J), few, NOW) == ("a", "joined-1")
        listed = session(SETTLED, "a", "joined-1")
        assert choose_ranks(facts(2, A, J, B, session=listed), few, NOW) == ("a", "joined-1")

    def test_those_that_joined_stay_where_fewer_are_asked_for(self) -> None:
        listed = session(SETTLED, "a", "b", "c", "joined-1", minimum=1)
        assert choose_ranks(facts(1, A, B, C, J, session=listed), settings(1, 1), NOW) == ("a", "joined-1")

    def test_one_that_leaves_is_not_replaced(self) -> None:
        listed = session(SETTLED, "a", "b", "joined-1")
        leaving = replace(J, leaving=True)
        assert choose_ranks(facts(2, A, B, C, leaving, session=listed), USUAL, NOW) == ("a", "b")

    def test_a_run_begins_with_all_of_them(self) -> None:
        assert "2 of 3 ranks can start" in decide_now(facts(2, A, J, replace(B, ready=False))).reason

    def test_a_script_that_cannot_grow_is_held_to_the_size_that_is_asked_for_but_once(self) -> None:
        static = replace(session(SessionState.SETTLED, "a", "b"), static=("a", "b"))
        assert HoldSize(2) not in decide_now(facts(2, A, B, J, session=static)).actions
        assert HoldSize(2) in decide_now(facts(3, A, B, J, session=static)).actions

    def test_one_that_has_come_is_listed(self) -> None:
        decided = decide_now(facts(2, A, B, J, session=session(SETTLED, "a", "b")))
        assert decided.actions == (ListRanks(("a", "b", "joined-1"), 2),)


def test_workers_of_a_place_are_not_called_so() -> None:
    assert [is_joined(name) for name in ("joined-1", "joined-1.r2", "worker-1")] == [True, True, False]
    pods_of_a_dag_of_that_name = "joined-1-train-u2hvmmgf-worker-x7k2p", "joined-train-worker-x7k2p.r1"
    assert not any(map(is_joined, pods_of_a_dag_of_that_name))


def test_launchers_that_share_an_authority_give_no_name_twice(tmp_path: Path) -> None:
    """Or a machine that one has sent away would come back with the next one's."""
    authority = certificates.create(tls := tmp_path / "tls")
    names = []
    for term in (1, 2):
        offered = (OfferedToken(digest_of(secret), NOON + timedelta(hours=1), term) for secret in "ab")
        tokens = RootTokens(partial(to_json, OfferedTokens(tuple(offered))), term)
        last = Joining(RUN, authority, tls, tokens, __version__, lambda: NOON, term)
        for secret in "ab":
            request = JoinRequest("run", secret, own_request(), __version__, "127.0.0.1", "127.0.0.1")
            answer = last.answer(request)
            assert isinstance(answer, JoinGranted)
            names.append(answer.worker)
    assert names == ["joined-1", "joined-2", "joined-10001", "joined-10002"]
    assert [last.expects(name) for name in names] == [False, False, True, True]


def test_the_certificate_of_a_places_workers_is_no_ones_that_joined() -> None:
    server = AgentServer(RUN, *[lambda *_: None] * 3, expected=lambda _worker: True)
    assert server._may_be("worker-1", certificates.AGENT)
    assert not server._may_be("joined-1", certificates.AGENT)


PIN = "a" * 64


@pytest.mark.parametrize(
    ("address", "pin"),
    [
        *((address, PIN) for address in ("", "10.0.0.5; rm -rf ~ #", "host", "fe80::1%eth0", "10.0.0.05")),
        *(("10.0.0.5", pin) for pin in ("", "ab", "A" * 64, "g" * 64, f"{PIN}\n")),
    ],
)
def test_what_a_launchers_document_says_goes_into_no_command_unchecked(address: str, pin: str) -> None:
    check_door("10.0.0.5", PIN)
    with pytest.raises(InvalidDocument):
        check_door(address, pin)


class TestTokensOfARunInPods:
    def offered(self, digest: str = "d", launcher: int = 3) -> OfferedToken:
        return OfferedToken(digest, NOON + timedelta(hours=1), launcher)

    def test_are_of_one_launcher_and_can_be_used_once_until_they_expire(self) -> None:
        text = to_json(OfferedTokens((self.offered(), self.offered("other", launcher=2))))
        tokens = RootTokens(lambda: text, 3)
        assert tokens.has_token("d", NOON)
        assert not tokens.has_token("d", NOON + timedelta(hours=1))
        assert not tokens.has_token("other", NOON)
        assert not tokens.take_token("other", NOON)
        assert tokens.take_token("d", NOON)
        assert not tokens.take_token("d", NOON)
        assert not tokens.has_token("d", NOON)

    @pytest.mark.parametrize("text", [None, "", "{}", "[]", "nonsense", '{"tokens": [{"digest": "d"}]}'])
    def test_what_cannot_be_read_is_none(self, text: str | None) -> None:
        assert not RootTokens(lambda: text, 3).has_token("d", NOON)

    def test_there_are_a_hundred_open_ones_at_most(self) -> None:
        tokens = OfferedTokens()
        for number in range(MAX_TOKENS):
            tokens = tokens.and_one(self.offered(str(number)), NOON)
        with pytest.raises(Conflict, match="100 tokens of this run"):
            tokens.and_one(self.offered("more"), NOON)
        assert len(tokens.and_one(self.offered("more"), NOON + timedelta(hours=1)).tokens) == 1
        assert len(tokens.and_one(self.offered("more", launcher=4), NOON).tokens) == 1


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JoinableRun:
    monkeypatch.setattr(loop, "PUBLISH_INTERVAL", 0.01)
    monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=TrainingSession))
    return JoinableRun(tmp_path)


def messages(status: Status, kind: EventKind) -> list[str]:
    return [event.message for event in status.events if event.kind is kind]


@pytest.mark.parametrize("others", [True, False])
def test_nothing_is_handed_over_for_one_that_leaves_where_others_train_on(run: JoinableRun, others: bool) -> None:
    """Its certificate is of no use any more, however it goes after its notice."""

    async def test(place: Place, own: Worker, running: asyncio.Task[Status]) -> None:
        if others:
            await rank_started(own)
            await place.until(lambda status: any(8 in each.pids for each in status.workers))
        machine = await Worker.dial((await run.join(place.port, run.token())).tls, place.port, "joined-1")
        try:
            status = await place.until(lambda status: bool(messages(status, EventKind.JOINED)))
            assert messages(status, EventKind.JOINED) == ["joined-1 (by hand, from 127.0.0.1) has joined"]
            assert status.target_size == 1
            in_time = utc_now().replace(microsecond=0) + timedelta(seconds=30)
            machine.writer.write(encode(ReclaimNotice("sigterm", in_time)))
            status = await place.until(lambda status: bool(messages(status, EventKind.NOTICE)))
            (words,) = messages(status, EventKind.NOTICE)
            assert words.startswith("joined-1 will be taken in ")
            assert words.endswith(" s (sigterm)")
            place.deadlines["w"] = in_time
            place.on_change()
            assert (await own.hear_handover()).worker == ("w" if others else "joined-1")
        finally:
            machine.writer.transport.abort()
        await place.until(lambda status: bool(messages(status, EventKind.LEFT)))
        assert not run.joining.expects("joined-1")

    launched(run.tls, test, spec=RUN, joining=run.joining)


def test_a_machine_connects_again_until_it_is_released(run: JoinableRun) -> None:
    async def main() -> None:
        async with listening(run.tls, RUN, joining=run.joining) as desk:
            at = ("127.0.0.1", desk.port)
            arguments = JoinArguments("run", at, run.token(), ip_address("127.0.0.1"), None, NO_METADATA)
            (folder := run.folder.path / "machine").mkdir()
            joined = asyncio.create_task(join(arguments, folder))
            await desk.until(lambda: len(desk.arrivals) == 1)
            desk.arrivals[0].abort()
            await desk.until(lambda: len(desk.arrivals) == 2 and len(desk.of(Ready)) >= 1)
            assert [each.hello.worker for each in desk.arrivals] == ["joined-1", "joined-1.r1"]
            desk.arrivals[1].send(Release("the run has ended"))
            async with asyncio.timeout(SOON):
                await joined

    asyncio.run(main())


def test_a_machine_that_was_told_to_leave_does_not_connect_again(run: JoinableRun) -> None:
    async def main() -> None:
        async with listening(run.tls, RUN, joining=run.joining) as desk:
            at = ("127.0.0.1", desk.port)
            arguments = JoinArguments("run", at, run.token(), ip_address("127.0.0.1"), None, NO_METADATA)
            (folder := run.folder.path / "machine").mkdir()
            joined = asyncio.create_task(join(arguments, folder))
            await desk.until(lambda: len(desk.of(Ready)) == 1)
            os.kill(os.getpid(), signal.SIGINT)
            await desk.until(lambda: len(desk.of(ReclaimNotice)) == 1)
            desk.arrivals[0].abort()
            async with asyncio.timeout(SOON):
                await joined
            assert len(desk.arrivals) == 1

    asyncio.run(main())
