"""Everything that goes over a wire comes out as it went in, however it is cut into pieces."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.framing import LineReader, decode_line, encode_line
from elastic_runtime.protocol import rank_link, wire
from elastic_runtime.protocol.messages import type_of
from elastic_runtime.protocol.rank_link import Handover, decode_rank_message, encode_rank_message
from elastic_runtime.protocol.wire import decode, encode
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, RunSpec, WorkersSpec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.integers(0, 7 * 10**12).map(lambda millis: EPOCH + timedelta(milliseconds=millis))
"""Aware, to the millisecond, as they are written."""
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), plain, max_size=4)
texts = st.dictionaries(st.text(), st.text(), max_size=3)
specs = st.builds(
    RunSpec,
    name=st.text(),
    uid=st.text(),
    command=st.lists(st.text(), min_size=1).map(tuple),
    workers=st.sampled_from([WorkersSpec(), WorkersSpec(1, 2, 3, 4)]),
    recovery=st.builds(RecoverySpec, max_wait=numbers, reset_limit=st.none() | st.integers()),
    checkpoint=st.none() | st.builds(CheckpointSpec, uri=st.text(), every=numbers),
    environment=texts,
    warm=st.booleans(),
    version=st.just(1),
)


def built(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of that kind."""
    special = {
        wire.RankSaid: {"message": objects},
        wire.TellRank: {"word": objects},
        wire.StartRank: {"environment": texts},
        wire.Output: {"lines": st.lists(st.text()).map(tuple), "time": moments},
        wire.ReclaimNotice: {"deadline": moments},
        wire.Handover: {"deadline": moments},
        wire.CommitDeadline: {"deadline": st.none() | moments},
        wire.Welcome: {"spec": specs},
        rank_link.Metrics: {"values": st.dictionaries(st.text(), numbers)},
        rank_link.CheckpointWritten: {"time": moments},
        rank_link.EngineWord: {"word": objects},
    }
    finite = {name: numbers for name, hint in get_type_hints(kind).items() if hint is float}
    return st.builds(kind, **(finite | special.get(kind, {})))


messages = st.one_of(*(built(kind) for kind in get_args(wire.AgentMessage) + get_args(wire.LauncherMessage)))
rank_messages = st.one_of(*(built(kind) for kind in get_args(rank_link.RankMessage)))


class TestMessages:
    @given(messages)
    def test_between_agent_and_launcher(self, message: wire.Message) -> None:
        line = encode(message)
        assert line.count(b"\n") == 1
        assert decode(decode_line(line)) == message

    @given(rank_messages)
    def test_from_rank_to_agent(self, message: rank_link.RankMessage) -> None:
        assert decode_rank_message(decode_line(encode_rank_message(message))) == message

    @given(rank_messages)
    def test_from_rank_to_launcher(self, message: rank_link.RankMessage) -> None:
        said = wire.RankSaid("worker-0.0.0~0", decode_line(encode_rank_message(message)))
        heard = decode(decode_line(encode(said)))
        assert isinstance(heard, wire.RankSaid)
        assert decode_rank_message(heard.message) == message

    def test_types_have_names_of_their_own(self) -> None:
        for union in (wire.Message, rank_link.RankMessage):
            names = [type_of(kind) for kind in get_args(union)]
            assert len(set(names)) == len(names)

    @pytest.mark.parametrize(
        "text",
        [
            '{"type":"shell"}',
            '{"worker":"w"}',
            '{"type":null}',
            '{"type":"rank_exited","rank_id":"a"}',
            '{"type":"rank_exited","rank_id":"a","code":"0"}',
            '{"type":"rank_exited","rank_id":"a","code":true}',
            '{"type":"reclaim_notice","source":"aws","deadline":"2026-01-01T00:00:00"}',
            '{"type":"reclaim_notice","source":"aws","deadline":"soon"}',
            '{"type":"output","rank_id":"a","stream":"stdout","lines":[1],"time":"2026-01-01T00:00:00Z"}',
        ],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidDocument):
            decode(json.loads(text))

    def test_a_newer_peer_may_say_more(self) -> None:
        assert decode({"type": "ready", "warm": True, "colour": "red"}) == wire.Ready(True)
        assert decode_rank_message({"type": "colour"}) is None

    def test_a_rank_message_with_a_wrong_field_is_refused(self) -> None:
        with pytest.raises(InvalidDocument, match="step"):
            decode_rank_message({"type": "progress", "step": "7"})


class TestLines:
    @given(st.lists(st.dictionaries(st.text(max_size=3), st.text()), max_size=5), st.lists(st.integers(0, 50)))
    def test_come_out_whole_however_they_are_cut(self, sent: list[dict[str, Any]], cuts: list[int]) -> None:
        stream = b"".join(encode_line(each) for each in sent)
        reader, got = LineReader(), []
        for cut in cuts:
            got += list(reader.feed(stream[:cut]))
            stream = stream[cut:]
        assert [*got, *reader.feed(stream)] == sent

    def test_may_be_empty(self) -> None:
        assert list(LineReader().feed(b"\n\n{}\n")) == [{}]

    @pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b"null", b"\xff", b"{}{}"])
    def test_that_hold_no_object_are_refused(self, line: bytes) -> None:
        with pytest.raises(InvalidDocument, match="not a"):
            decode_line(line)

    def test_that_never_end_are_refused(self) -> None:
        reader = LineReader(10)
        assert list(reader.feed(b'"' + b"x" * 9)) == []
        with pytest.raises(InvalidDocument, match="10 bytes or more"):
            list(reader.feed(b"x"))

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_hold_only_what_json_knows(self, number: float) -> None:
        with pytest.raises(ValueError, match="JSON"):
            encode_line({"loss": number})


def test_a_handover_is_a_line() -> None:
    wanted = Handover("worker-1", datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), 3)
    assert decode_line(encode_rank_message(wanted)) == {
        "type": "handover",
        "worker": "worker-1",
        "deadline": "2026-01-02T03:04:05.678Z",
        "number": 3,
    }
