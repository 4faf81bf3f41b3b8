"""Facts, settings and rows of a table in a word, for the tests of the launcher's decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    Decision,
    DecisionSettings,
    Facts,
    Finish,
    SlotFact,
    WorkerFact,
)
from elastic_runtime.run.spec import RecoverySpec, Timing, WorkersSpec
from elastic_runtime.run.status import Phase

NOW = 1000.0


def settings(
    minimum: int = 2, start: int = 2, maximum: int = 4, slots: int = 1, lease: float = 0.0, **recovery: object
) -> DecisionSettings:
    return DecisionSettings(
        WorkersSpec(minimum, start, maximum, slots),
        RecoverySpec(**recovery),  # type: ignore[arg-type]  # each test names fields of the right type
        Timing(lease=lease, gather=10.0),
    )


def worker(
    name: str, slots: int = 1, *, ready: bool = True, leaving: bool = False, running: bool = False, usable_at: float = 0
) -> WorkerFact:
    rank_ids = [name] if slots == 1 else [f"{name}{index}" for index in range(slots)]
    return WorkerFact(name, ready, tuple(SlotFact(each, usable_at) for each in rank_ids), leaving, running)


def session(state: SessionState, *listed: str, holders: tuple[str, ...] | None = None, minimum: int = 2) -> SessionFact:
    """Who is listed has the state, unless others are named."""
    return SessionFact(state, listed, holders=listed if holders is None else holders, minimum=minimum)


def forming(*, holders: tuple[str, ...] | None = ("a", "b"), given_up: bool = False) -> SessionFact:
    """A world of a, b and c."""
    return SessionFact(SessionState.FORMING, ("a", "b", "c"), world=2, holders=holders, given_up=given_up)


def ended(outcome: SessionOutcome, detail: str = "rank 0 (a) ended with SIGKILL") -> SessionFact:
    return SessionFact(SessionState.ENDED, ("a", "b"), outcome, detail)


def facts(wanted: int, *workers: WorkerFact, **others: object) -> Facts:
    return replace(Facts(wanted, workers), **others)  # type: ignore[arg-type]  # each test names fields of the right type


USUAL = settings()
FRESH = Clocks(launched=NOW)


def since(**moments: float) -> Clocks:
    """What has lasted since these moments; all else has just begun."""
    return replace(FRESH, **moments)


A, B, C, D = worker("a"), worker("b"), worker("c"), worker("d")
SETTLED, WAITING = SessionState.SETTLED, SessionState.WAITING


@dataclass(frozen=True)
class Row:
    says: str
    given: Facts
    decided: Decision
    settings: DecisionSettings = USUAL
    clocks: Clocks = FRESH

    def decide(self, **changes: object) -> Decision:
        """With these facts changed."""
        given = replace(self.given, **changes)  # type: ignore[arg-type]  # each test names fields of the right type
        return decide(given, self.clocks, self.settings, NOW)


def failed(kind: FailureKind, reason: str) -> Decision:
    return Decision((Finish(Phase.FAILED, kind),), Phase.FAILED, reason)


def by_its_words(rows: Sequence[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[row.says.replace(" ", "-") for row in rows])


def decide_now(given: Facts, settings: DecisionSettings = USUAL, clocks: Clocks = FRESH) -> Decision:
    """About these facts now."""
    return decide(given, clocks, settings, NOW)
