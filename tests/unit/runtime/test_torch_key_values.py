"""The store of a world against torch's own, and what is refused there."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from elastic_runtime.engines.torch import key_values
from elastic_runtime.engines.torch.key_values import KeyValues
from elastic_runtime.engines.torch.messages import (
    MOST_KEY,
    MOST_KEYS,
    MOST_VALUE,
    StoreAnswer,
    StoreAsk,
    read_rank_word,
)
from elastic_runtime.errors import InvalidDocument

KEYS, VALUES = st.sampled_from(["a", "b", "c"]), st.binary(min_size=1, max_size=3)
operations = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("check"), KEYS),
    st.tuples(st.just("add"), st.sampled_from(["n", "m"]), st.integers(-5, 5)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("compare_set"), KEYS, st.just(b"") | VALUES, VALUES),
)


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def ask(store: KeyValues, operation: Any, *keys: str, who: str = "r", serial: int = 1, **more: Any) -> Any:
    """The answer; None while there is none."""
    answers = dict(store.ask(who, StoreAsk(1, serial, operation, keys, **more)))
    return answers.get(who)


def ours(store: KeyValues, operation: str, key: str, *values: Any) -> Any:
    match operation:
        case "set":
            ask(store, "set", key, value=text(values[0]))
            return None
        case "get":
            return base64.b64decode(answer.value) if (answer := ask(store, "get", key)) else None
        case "add":
            return ask(store, "add", key, amount=values[0]).number
        case "compare_set":
            answer = ask(store, "compare_set", key, expected=text(values[0]), value=text(values[1]))
            return base64.b64decode(answer.value)
    return bool(ask(store, operation, key).number)


def theirs(store: Any, operation: str, key: str, *values: Any) -> Any:
    match operation:
        case "set":
            store.set(key, values[0].decode("latin-1"))
            return None
        case "get":
            return store.get(key) if store.check([key]) else None
        case "check":
            return store.check([key])
        case "add":
            return store.add(key, values[0])
        case "delete":
            return store.delete_key(key)
    return store.compare_set(key, *(value.decode("latin-1") for value in values))


@given(st.lists(operations, max_size=20))
def test_does_what_torchs_store_does(steps: list[tuple[Any, ...]]) -> None:
    store, reference = KeyValues(), HashStore()
    reference.set_timeout(timedelta(seconds=1))
    for operation, key, *values in steps:
        ascii_only = [bytes(b & 127 for b in value) if isinstance(value, bytes) else value for value in values]
        expected = theirs(reference, operation, key, *ascii_only)
        assert ours(store, operation, key, *ascii_only) == expected, (operation, key, ascii_only)
        store.forget("r")


def test_who_waits_is_answered_once_it_is_there() -> None:
    store = KeyValues()
    assert ask(store, "get", "a", who="one", serial=7) is None
    assert ask(store, "wait", "a", "b", who="two", serial=8) is None
    assert dict(store.ask("three", StoreAsk(1, 9, "set", ("a",), value="MQ=="))) == {
        "three": StoreAnswer(9),
        "one": StoreAnswer(7, "MQ=="),
    }
    assert dict(store.ask("three", StoreAsk(1, 10, "add", ("b",), amount=2)))["two"] == StoreAnswer(8)


def test_who_has_ended_is_not_answered() -> None:
    store = KeyValues()
    ask(store, "get", "a", who="one")
    store.forget("one")
    assert set(dict(store.ask("two", StoreAsk(1, 2, "set", ("a",))))) == {"two"}


def test_who_has_given_up_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MOST_WAITING", 2)
    store = KeyValues()
    ask(store, "get", "a", who="one", serial=1)
    for serial in range(2, 100):
        assert ask(store, "wait", "a", "b", who="one", serial=serial) is None
        assert ask(store, "give_up", "a", "b", who="one", serial=serial) is None
    assert ask(store, "give_up", "a", who="two", serial=1) is None, "another's with that serial"
    answers = [*store.ask("two", StoreAsk(1, 9, "set", ("a",))), *store.ask("two", StoreAsk(1, 10, "set", ("b",)))]
    assert answers == [("two", StoreAnswer(9)), ("one", StoreAnswer(1)), ("two", StoreAnswer(10))]


class TestHostile:
    @pytest.mark.parametrize(
        "ask",
        [
            {"operation": "set", "keys": ["k" * (MOST_KEY + 1)]},
            {"operation": "set", "keys": ["k"], "value": "v" * (MOST_VALUE + 1)},
            {"operation": "compare_set", "keys": ["k"], "expected": "v" * (MOST_VALUE + 1)},
            {"operation": "compare_set", "keys": ["k"], "expected": "v", "value": "v" * MOST_VALUE},
            {"operation": "wait", "keys": ["k"] * MOST_KEYS},
            {"operation": "set", "keys": []},
            {"operation": "get", "keys": ["a", "b"]},
            {"operation": "append", "keys": ["a"]},
            {"operation": "add", "keys": ["a"], "amount": "1"},
        ],
    )
    def test_an_ask_that_nobody_makes_is_refused(self, ask: dict[str, Any]) -> None:
        with pytest.raises(InvalidDocument):
            read_rank_word({"type": "store_ask", "world": 1, "serial": 1, **ask})

    def test_another_kind_of_word_is_refused(self) -> None:
        with pytest.raises(InvalidDocument, match="enter_world"):
            read_rank_word({"type": "enter_world", "world": 1, "rank": 0, "size": 1})

    def test_a_number_stays_within_64_bits(self) -> None:
        store = KeyValues()
        ask(store, "add", "n", amount=2**63 - 1)
        with pytest.raises(InvalidDocument, match="64 bits"):
            ask(store, "add", "n", amount=1)

    def test_what_is_no_number_is_not_added_to(self) -> None:
        store = KeyValues()
        ask(store, "set", "n", value=text(b"9" * 10_000))
        with pytest.raises(InvalidDocument, match="not a number"):
            ask(store, "add", "n", amount=1)

    def test_it_is_full_at_some_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_values, "MOST_KEYS", 2)
        store = KeyValues()
        ask(store, "set", "a")
        ask(store, "set", "b")
        ask(store, "set", "b", value="MQ==")
        with pytest.raises(InvalidDocument, match="full"):
            ask(store, "set", "c")

    def test_values_are_bounded_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_values, "MOST_CHARACTERS", 6)
        store = KeyValues()
        ask(store, "set", "a", value="MQ==")
        with pytest.raises(InvalidDocument, match="full"):
            ask(store, "set", "b", value="MQ==")
        ask(store, "delete", "a")
        ask(store, "set", "b", value="MQ==")

    def test_nobody_waits_for_too_much(self) -> None:
        store = KeyValues()
        for serial in range(key_values.MOST_WAITING):
            ask(store, "get", "a", serial=serial)
        with pytest.raises(InvalidDocument, match="wait"):
            ask(store, "get", "a", serial=1000)

    def test_nobody_waits_for_too_many_keys(self) -> None:
        store, keys = KeyValues(), [f"{number:x}" for number in range(6000)]
        for serial in range(3):
            assert ask(store, "wait", *keys, serial=serial) is None
        with pytest.raises(InvalidDocument, match="keys"):
            ask(store, "wait", *keys, serial=3)
        ask(store, "give_up", *keys, serial=2)
        assert ask(store, "wait", *keys, serial=3) is None

    def test_a_serial_waits_once(self) -> None:
        store = KeyValues()
        ask(store, "get", "a", serial=1)
        with pytest.raises(InvalidDocument, match="serial"):
            ask(store, "get", "b", serial=1)

    def test_keys_that_come_and_go_cost_nobody_a_look_at_all_others(self) -> None:
        store, values = KeyValues(), Counting()
        store._values = values
        keys = [f"{number:x}" for number in range(4500)]
        for key in keys:
            ask(store, "set", key)
        for rank in range(8):
            for serial in range(4):
                ask(store, "wait", *keys, "x", "y", who=f"rank{rank}", serial=serial)
        values.looks = 0
        for operation, key in [("set", "x"), ("delete", "x"), ("set", "y"), ("delete", "y")] * 10:
            ask(store, operation, key, who="asks")
        assert values.looks < 10 * 40
        ask(store, "set", "x", who="asks")
        assert len(list(store.ask("asks", StoreAsk(1, 1, "set", ("y",))))) == 1 + 8 * 4
        assert not store._for_key


class Counting(dict[str, str]):
    """Counts how often it is looked into."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def test_an_ask_does_not_look_at_all_that_others_wait_for() -> None:
    store, values, ranks = KeyValues(), Counting(), 20
    store._values = values
    keys = tuple(f"key{number}" for number in range(3000))
    for rank in range(ranks):
        assert ask(store, "wait", *keys, who=f"rank{rank}") is None
    for key in keys[:-1]:
        values.looks = 0
        assert ask(store, "set", key, value=text(b"x")) is not None
        assert values.looks < 10 * ranks
    values.looks = 0
    ask(store, "set", "another", value=text(b"x"))
    assert values.looks < 10
    assert len(list(store.ask("r", StoreAsk(1, 2, "set", keys[-1:], value=text(b"x"))))) == ranks + 1
    assert not store._waiting
    assert not store._for_key


def test_a_key_that_goes_again_is_waited_for_again() -> None:
    store = KeyValues()
    assert ask(store, "wait", "a", "b", who="waits") is None
    for operation, key in (("set", "a"), ("delete", "a"), ("set", "b")):
        assert len(list(store.ask("r", StoreAsk(1, 1, operation, (key,), value=text(b"x"))))) == 1  # type: ignore[arg-type]
    assert [who for who, _ in store.ask("r", StoreAsk(1, 2, "set", ("a",), value=text(b"x")))] == ["r", "waits"]
