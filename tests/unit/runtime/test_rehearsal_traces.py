"""Traces from files that anybody may have written, and windows of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.rehearsal import trace_files
from elastic_runtime.rehearsal.trace import DAY, Stay, Trace, trace_text
from elastic_runtime.rehearsal.trace_files import MOST_MACHINES, SHIPPED, parse_counts, parse_trace, read_trace, shipped
from elastic_runtime.rehearsal.window import newest, window
from tests.unit.runtime.trace_bench import trace, traces


def counts(data: object, gap: object = 300, **more: object) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": data, **more})


def count_at(made: Trace, moment: float) -> int:
    return sum(stay.begin <= moment < stay.end for stay in made.stays)


def price_at(made: Trace, moment: float) -> Decimal:
    return [price for at, price in made.prices if at <= moment][-1]


class TestPrices:
    def test_stand_among_the_changes(self) -> None:
        made = parse_trace("t", "1000,price,0.25\n2000,add,a\n5000,price,0.5\n6000,price,0.50\n9000,remove,a\n")
        assert made.duration == 8.0
        assert made.prices == ((0.0, Decimal("0.25")), (4.0, Decimal("0.5")))

    @pytest.mark.parametrize("price", ["-1", "0", "nan", "inf", "1e9", "x", "1" + "0" * 30, "0." + "1" * 50])
    def test_are_prices(self, price: str) -> None:
        with pytest.raises(InvalidDocument, match=r"line 1: .* has no price"):
            parse_trace("t", f"0,price,{price}\n9,add,a\n")


class TestCounts:
    def test_are_machines_that_come_and_go(self) -> None:
        made = parse_counts("t", counts([2, 2, 1, 3], prices=[0.5, 0.25, 0.25, 1]))
        assert made.duration == 1200.0
        assert [count_at(made, each) for each in (0, 599, 600, 899, 900, 1199)] == [2, 2, 1, 1, 3, 3]
        assert len(made.losses) == 1
        assert [price_at(made, each) for each in (0, 300, 900)] == [Decimal("0.5"), Decimal("0.25"), Decimal(1)]

    def test_draw_the_same_machine_each_time(self) -> None:
        assert parse_counts("t", counts([9, 4, 9, 2])) == parse_counts("t", counts([9, 4, 9, 2]))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "not JSON"),
            ("[" * 10_000, "not JSON|levels"),
            ("[]", "gap_seconds"),
            ('{"metadata": []}', "gap_seconds"),
            (counts([1, 2], gap=0), "gap_seconds is not"),
            (counts([1, 2], gap=True), "gap_seconds is not"),
            (counts([1, 2], gap=1e300), "gap_seconds is not"),
            ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', "gap_seconds is not"),
            (counts([]), "data is not a list"),
            (counts("12"), "data is not a list"),
            (counts([1, 2.5]), "2.5 in data"),
            (counts([1, True]), "True in data"),
            (counts([1, -1]), "-1 in data"),
            (counts([1, MOST_MACHINES + 1]), "1001 in data"),
            (counts([0, 0]), "no machine"),
            (counts([1, 1], prices=[1]), "list of 2 prices"),
            (counts([1, 1], prices=[1, "x"]), r"data\[1\] has no price"),
            (counts([1] * 100, gap=86400 * 4), "gap_seconds is not"),
            (counts([1] * 400, gap=86400), "more than 366 days"),
        ],
    )
    def test_what_are_none_is_told(self, text: str, says: str) -> None:
        with pytest.raises(InvalidDocument, match=says):
            parse_counts("t", text)


class TestHostile:
    def test_bounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trace_files, "MOST_CHANGES", 3)
        with pytest.raises(InvalidDocument, match=r"line 4: .* one more than 3 changes"):
            parse_trace("t", "0,add,a\n1,add,b\n2,add,c\n3,add,d\n")
        monkeypatch.setattr(trace_files, "MOST_MACHINES", 2)
        with pytest.raises(InvalidDocument, match="more than 2 machines at once"):
            parse_trace("t", "0,add,a\n1,add,b\n2,add,c\n")

    @pytest.mark.parametrize(
        "line", ["1" * 5000 + ",add,a", "1,add," + "a" * 200, "1,add,", "1,add,a,b", "1,ADD,a", "1e3,add,a", "\x1b[2J"]
    )
    def test_a_line_is_quoted_short_and_printable(self, line: str) -> None:
        with pytest.raises(InvalidDocument) as caught:
            parse_trace("t", f"0,add,z\n{line}\n")
        assert len(str(caught.value)) < 250
        assert str(caught.value).isprintable()

    def test_a_year_is_enough(self) -> None:
        with pytest.raises(InvalidDocument, match="more than 366 days"):
            parse_trace("t", f"0,add,a\n{round(367 * DAY * 1000)},remove,a\n")

    def test_a_file_is_a_file_of_some_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(tmp_path / "pipe.csv")
        with pytest.raises(InvalidDocument, match="does not exist"):  # and does not wait for a writer
            read_trace(tmp_path / "pipe.csv")
        (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidDocument, match="cannot be read as a trace"):
            read_trace(tmp_path / "bytes.csv")
        monkeypatch.setattr(trace_files, "LARGEST", 10)
        (tmp_path / "large.csv").write_text("0,add,a\n9,remove,a\n")
        with pytest.raises(InvalidDocument, match="larger than 10 bytes"):
            read_trace(tmp_path / "large.csv")

    lines = st.lists(
        st.text(max_size=40)
        | st.builds(
            "{},{},{}".format,
            st.integers(-5, 50) | st.text("0123456789.-e", max_size=25),
            st.sampled_from(["add", "remove", "price", "Add", ""]),
            st.sampled_from(["a", "b", "0.5", "", "a,b", "\x1b"]) | st.text(max_size=10),
        ),
        max_size=12,
    )

    @given(lines)
    def test_any_csv_is_a_trace_or_told_to_be_none(self, made: list[str]) -> None:
        self.whole(lambda: parse_trace("t", "\n".join(made)))

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["gap_seconds", "x"]), inner),
        max_leaves=6,
    )

    @given(
        st.dictionaries(st.sampled_from(["metadata", "data", "prices"]), json_values)
        | st.builds(
            lambda data, gap, prices: {"metadata": {"gap_seconds": gap}, "data": data, "prices": prices},
            st.lists(st.integers(-1, 5), max_size=6),
            st.floats(0, 1e5) | json_values,
            st.lists(st.floats(0, 1) | json_values, max_size=6),
        )
    )
    def test_any_json_is_a_trace_or_told_to_be_none(self, made: object) -> None:
        self.whole(lambda: parse_counts("t", json.dumps(made)))

    @staticmethod
    def whole(read: Callable[[], Trace]) -> None:
        try:
            made = read()
        except InvalidDocument:
            return
        assert made.duration > 0
        assert all(0 <= stay.begin < stay.end <= made.duration for stay in made.stays)
        assert len({stay.name for stay in made.stays}) == len(made.stays)
        assert [at for at, _ in made.prices] == sorted({at for at, _ in made.prices})
        assert not made.prices or made.prices[0][0] == 0.0

    @given(traces())
    def test_what_was_written_is_read_again(self, made: Trace) -> None:
        read = parse_trace("made", trace_text(made.stays, made.duration))
        again = {stay.name: stay for stay in read.stays}
        first = min(stay.begin for stay in made.stays)
        assert again.keys() == {stay.name for stay in made.stays}
        for stay in made.stays:
            kept = (again[stay.name].begin, again[stay.name].end)
            assert kept == pytest.approx((stay.begin - first, stay.end - first), abs=0.002)

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=20).filter(any))
    def test_counts_are_kept(self, data: list[int]) -> None:
        made = parse_counts("t", counts(data, gap=10))
        assert [count_at(made, index * 10 + 5) for index in range(len(data))] == data

    def test_those_that_ship_are_read(self) -> None:
        assert list(shipped()) == ["calm", "flapping", "fleet_loss", "stormy"]
        assert {read_trace(SHIPPED / f"{name}.csv").name for name in shipped()} == set(shipped())


class TestWindow:
    def test_begins_in_the_midst(self) -> None:
        made = window(trace(100, (0, 100), (30, 60), (70, 80)), 50, 25)
        assert [(stay.begin, stay.end) for stay in made.stays] == [(0, 25), (0, 10), (20, 25)]
        assert len(made.losses) == 1

    def test_goes_on_with_the_begin_and_loses_no_machine_there(self) -> None:
        made = window(trace(100, (0, 100), (0, 40), (50, 100)), 60, 200)
        # Of two at the end, two are there at the begin.
        assert [(stay.begin, stay.end) for stay in made.stays if stay.begin == 0] == [(0, 200), (0, 80)]
        assert len({stay.name for stay in made.stays}) == len(made.stays)

    def test_takes_prices_along(self) -> None:
        made = parse_trace("t", "0,add,a\n0,price,1\n40000,price,2\n100000,remove,a\n")
        assert window(made, 50, 100).prices == ((0.0, Decimal(2)), (50.0, Decimal(1)), (90.0, Decimal(2)))

    def test_the_newest_days_are_the_last(self) -> None:
        made = trace(100, (0, 100), (90, 95))
        assert newest(made, 1000) is made
        assert newest(made, 20).stays == (Stay("node00", 0, 20), Stay("node01", 10, 15))

    def test_a_short_trace_is_not_repeated_for_ever(self) -> None:
        with pytest.raises(InvalidSettings, match="lasts 1 s, and would be repeated"):
            window(trace(1, (0, 1)), 0, 366 * DAY)

    @given(traces(), st.floats(0, 5000), st.floats(10, 9000), st.floats(0, 1))
    def test_there_are_as_many_machines_as_in_the_trace(
        self, made: Trace, start: float, length: float, share: float
    ) -> None:
        cut = window(made, start, length)
        moment = share * length * 0.999
        past = (start % made.duration + moment) % made.duration
        edges = [edge for stay in made.stays for edge in (stay.begin, stay.end)]
        if min(abs(edge - past) for edge in (*edges, 0.0, made.duration)) > 1e-6:
            assert count_at(cut, moment) == count_at(made, past)
        assert all(0 <= stay.begin < stay.end <= length for stay in cut.stays)
