"""What the evidence says of its records, and that its pages are of its raw data."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.evidence import document, faults, halves, language, law, leaks, records
from benchmarks.evidence.__main__ import ALL, DOCS, HERE, compact
from benchmarks.evidence.playing import Watch
from benchmarks.evidence.records import Done, Point
from benchmarks.harness.records import Step

MEASURED = [name for name in ALL if (HERE / f"{name}.json").exists()]


def world(step: int, time: float, pids: dict[int, int], loss: float = 1.0) -> list[Done]:
    """The records of a step of a world, by rank."""
    return [Done(time + rank / 1000, step, rank, len(pids), loss, pid) for rank, pid in pids.items()]


def steady(steps: range, begin: float, size: int = 2) -> list[Point]:
    return [Point(begin + number, step, size, 1.0) for number, step in enumerate(steps)]


class TestLaw:
    def test_faults_are_as_far_apart_as_in_the_published_comparison(self) -> None:
        steps = [0, *(fault.step for fault in law.draw(100_000, 2, seed=1))]
        gaps = [later - step for step, later in pairwise(steps)]
        assert min(gaps) >= 333
        assert max(gaps) <= 556
        assert sum(gaps) / len(gaps) == pytest.approx(3600 / 8.1, rel=0.03)

    def test_the_same_seed_draws_the_same_faults(self) -> None:
        assert law.draw(3000, 2, seed=1) == law.draw(3000, 2, seed=1) != law.draw(3000, 2, seed=2)
        assert {fault.victim for fault in law.draw(100_000, 2, seed=1)} == {0, 1}

    def test_half_of_the_ranks_are_lost_and_never_the_first(self) -> None:
        for seed in range(20):
            found = law.losses(600, 8, seed)
            assert [fault.step for fault in found] == [56, 169, 281, 394]
            assert all(0 < fault.victim < 8 - number for number, fault in enumerate(found))


class TestRecords:
    def test_a_step_that_a_survivor_does_again_was_repeated(self) -> None:
        done = [*world(1, 1.0, {0: 10, 1: 11}), *world(2, 2.0, {0: 10, 1: 11}), *world(2, 3.0, {0: 11})]
        points = records.curve(done, launched=1.0)
        assert [(point.step, point.size) for point in points] == [(1, 2), (2, 2), (2, 1)]
        assert points[0].seconds == pytest.approx(0.001)
        assert records.repeated(points) == 1

    def test_steps_after_a_restart_were_repeated(self) -> None:
        done = [record for step in (1, 2, 3) for record in world(step, step, {0: 10, 1: 11})]
        done += [record for step in (2, 3, 4) for record in world(step, 10 + step, {0: 20, 1: 21})]
        assert records.repeated(records.curve(done, 0.0)) == 2

    def test_a_line_that_was_cut_off_by_a_kill_does_not_count(self, tmp_path: Path) -> None:
        line = json.dumps({"t": 2_000_000_000, "step": 1, "rank": 0, "size": 2, "entry": 1, "loss": 0.5})
        (tmp_path / "7.jsonl").write_text(f"{line}\n{line[:20]}")
        assert records.read(tmp_path) == [Done(2.0, 1, 0, 2, 0.5, 7)]

    def test_the_pace_is_that_of_whole_worlds(self) -> None:
        points = [*steady(range(1, 5), 0.0), *steady(range(5, 20), 100.0, size=1)]
        assert records.pace(points, 2) == 1.0
        with pytest.raises(ValueError, match="no two steps at size 3"):
            records.pace(points, 3)

    def test_the_cost_of_a_fault_has_its_pause_and_the_steps_done_again(self) -> None:
        points = [*steady(range(1, 51), 1.0), *steady(range(41, 120), 60.0)]
        assert records.lost(points, [50.5], 1.0) == [pytest.approx(10 + 9)]
        assert records.lost(points, [138.0], 1.0) == [], "the run ended before it was at its pace again"

    def test_a_thinned_curve_keeps_its_ends_and_both_sides_of_a_pause(self) -> None:
        points = [*steady(range(1, 5001), 0.0), *steady(range(5001, 9000), 6000.0)]
        kept = records.thinned(points, 400)
        assert len(kept) <= 400
        assert {1, 5000, 5001, 8999} <= {point.step for point in kept}
        assert kept == sorted(kept, key=lambda point: point.seconds)
        assert records.thinned(points[:10], 400) == points[:10]

    def test_a_victim_is_of_the_newest_world(self) -> None:
        watch = Watch()
        steps = [Step(1.0, 1, 0, 2, 1, 10), Step(1.0, 1, 1, 2, 1, 11)]
        watch.look(steps)
        assert watch.victim(1).pid == 11
        watch.look([*steps, Step(2.0, 2, 0, 1, 1, 11)])
        assert watch.newest == 2
        assert watch.victim(1).pid == 11, "the last there is"


class TestLanguage:
    LESSON = language.Lesson(3, parts=4, width=8, depth=1, heads=2, context=8, sequences=2)

    def test_sums_are_the_same_in_any_world(self) -> None:
        language.prepare()
        model, _ = language.build(self.LESSON)
        text = language.read_text()

        def whole(size: int) -> torch.Tensor:
            shares = [language.share(self.LESSON, rank, size) for rank in reversed(range(size))]
            sums = [language.summed(model, text, self.LESSON, 1, share) for share in shares]
            return torch.stack(sums).sum(dim=0)

        assert all(torch.equal(whole(1), whole(size)) for size in (2, 3, 4))
        assert language.learn(model, whole(2) / self.LESSON.parts) == pytest.approx(5.5, abs=0.3)

    def test_weights_are_compared_to_the_last_bit(self, tmp_path: Path) -> None:
        language.prepare()
        model, optimizer = language.build(self.LESSON)
        language.save_weights(model, tmp_path / "before")
        language.learn(model, language.summed(model, language.read_text(), self.LESSON, 1, range(4)) / 4)
        optimizer.step()
        language.save_weights(model, tmp_path / "after")
        before, again, after = (language.Weights.read(tmp_path / name) for name in ("before", "before", "after"))
        assert before.digest == again.digest != after.digest
        assert before.difference(again) == 0 < before.difference(after)

    def test_a_lesson_is_read_as_it_was_written(self) -> None:
        assert language.Lesson.parse(str(self.LESSON)) == self.LESSON


class TestPages:
    def test_a_curve_is_broken_where_nothing_was_done(self) -> None:
        points = [(float(at), 1.0) for at in range(10)] + [(50.0, 3.0), (51.0, 1.0)]
        curve = document.smoothed("one", points, [9.5], mean_of=2)
        assert [len(piece) for piece in curve.pieces] == [10, 2]
        assert curve.pieces[1] == ((50.0, 3.0), (51.0, 2.0)), "no mean over the gap"

    def test_no_text_ends_the_script(self) -> None:
        empty = document.Document("one", "</script><b>", "", (), (), (), (), (), ())
        assert document.page(empty).count("</script>") == 1

    def test_raw_data_has_a_line_for_each_point(self) -> None:
        raw = {"a": 1, "points": [[1, 2], [3, 4]], "law": {"seed": 1}}
        assert json.loads(compact(raw)) == raw
        assert compact(raw).count("\n") == 8

    def test_a_missed_goal_is_said(self) -> None:
        goals = (document.Goal("time", "2", "at most 1", met=False),)
        told = document.markdown([document.Document("one", "One", "Lead.", goals, (), (), (), (), ())])
        assert "| time | 2 | at most 1 | **no** |" in told

    def test_the_pages_show_what_was_measured_last(self) -> None:
        for name in MEASURED:
            found = ALL[name].present(json.loads((HERE / f"{name}.json").read_text()))
            again = "python -m benchmarks.evidence --draw writes it"
            assert (HERE / f"{name}.html").read_text() == document.page(found), again
            assert all(len(row) == len(table.head) for table in found.tables for row in table.rows)

    def test_the_docs_show_what_was_measured_last(self) -> None:
        found = [ALL[name].present(json.loads((HERE / f"{name}.json").read_text())) for name in MEASURED]
        assert DOCS.read_text() == document.markdown(found), "python -m benchmarks.evidence --draw writes it"


def test_the_least_of_some_looks_counts() -> None:
    one = {"ranks": {"processes": 2, "memory": 9.5}, "loaders": {"processes": 4, "memory": 3.0}}
    other = {"ranks": {"processes": 2, "memory": 8.5}}
    assert leaks.least([one, other]) == {"ranks": {"processes": 2, "memory": 8.5}}


def test_figures_of_a_run() -> None:
    points = [*steady(range(1, 101), 1.0), *steady(range(101, 150), 110.0, size=1), *steady(range(150, 201), 160.0)]
    found = faults.figures(points, [100.5], 200)
    assert (found["start"], found["seconds"], found["repeated"]) == (1.0, 209.0, 0)
    assert found["missed"] == 24.5
    assert found["lost"] == [9.0]
    assert faults.own_ratio({**found, "pace": 1.0}) == pytest.approx(1 + 9 / 200)


def test_the_ratio_of_lost_halves_is_smaller_with_fewer_losses() -> None:
    runs = {"ours": {"pace": 0.1, "lost": [0.6, 0.6, 0.7]}, "restart": {"pace": 0.2, "lost": [45.6]}}
    assert halves.SELDOM == 444
    assert halves.seldom(runs, "restart") == pytest.approx((44.4 + 45.6) / (44.4 + 0.6))


def test_a_pace_that_is_far_off_says_that_the_machine_was_not_quiet() -> None:
    def raw(pace: float) -> dict[str, dict[str, dict[str, float]]]:
        return {"calm": {"ours": {"pace": 0.040}}, "runs": {"fault-free": {"pace": 0.040}, "ours": {"pace": pace}}}

    assert faults.is_quiet(raw(0.041))
    assert not faults.is_quiet(raw(0.057))
