"""What is kept of a round of ``make chaos``, and what is said of many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from elastic_runtime.documents import from_json
from tests.chaos.__main__ import ENGINES, _keep
from tests.chaos.judge import Digests, Expected, Outcome
from tests.chaos.plan import Plan
from tests.chaos.report import line, table
from tests.chaos.round import Round

WEIGHTS = (0.5, -0.25)
EXPECTED = Expected(WEIGHTS, {5: {"ema": "c1"}})
RIGHT, OTHER = Digests(5, 0, 2, {"ema": "c1"}), Digests(5, 1, 2, {"ema": "c2"})
ROUND = Round("torch", Plan(seed=17), Outcome("", WEIGHTS, (), (), digests=(RIGHT, OTHER)))


def test_each_engine_that_keeps_a_state_is_played() -> None:
    assert set(ENGINES) == {"horovod", "torch", "torch-in-place", "torch-sharded", "hub"}


def test_a_wrong_round_keeps_its_folder_and_the_digests_that_differ(tmp_path: Path) -> None:
    (base := tmp_path / "torch-000017-0001").mkdir()
    judged = _keep(ROUND, EXPECTED, base)
    kept = from_json(Round, base.with_suffix(".json").read_text(encoding="utf-8"))
    assert kept == judged.round
    assert (kept.digested, kept.outcome.digests) == (2, (OTHER,))
    assert base.exists()


def test_a_right_round_keeps_a_page_alone(tmp_path: Path) -> None:
    (base := tmp_path / "torch-000017-0001").mkdir()
    judged = _keep(replace(ROUND, outcome=replace(ROUND.outcome, digests=(RIGHT,))), EXPECTED, base)
    assert judged.verdict.troubles == []
    assert (judged.round.digested, judged.round.outcome.digests) == (1, ())
    assert [path.name for path in tmp_path.iterdir()] == ["torch-000017-0001.json"]


def test_digests_that_differ_are_counted_and_make_the_round_wrong(tmp_path: Path) -> None:
    (base := tmp_path / "torch-000017-0001").mkdir()
    judged = _keep(ROUND, EXPECTED, base)
    assert "WRONG: after step 5, ema differs on rank 1 of 2" in line(judged, 1, 1)
    head, figures, *_ = table([judged])
    named = dict(zip(head.split(), figures.split(), strict=False))
    assert [named[name] for name in ("rounds", "faults", "wrong", "digests", "apart")] == ["1", "0", "1", "2", "1"]
