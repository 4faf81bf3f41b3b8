"""A run at a glance."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.deadline import MAX_WORDS, DeadlineStatus
from elastic_runtime.run.headline import Headline, headline
from elastic_runtime.run.status import MAX_MACHINE_NAME, MAX_MESSAGE, MAX_REASON, MAX_USAGE, Phase, Usage
from elastic_runtime.run.status_progress import MAX_BASIS, Progress
from tests.unit.runtime.test_kubernetes_publishing import BASE, FIGURES, HEADLINES

LATER = replace(BASE, updated=BASE.updated + timedelta(seconds=1))


@pytest.mark.parametrize("change", [*HEADLINES.values(), {"phase": Phase.FAILED, "failure": FailureKind.CANCELLED}])
def test_says_whether_there_is_news(change: dict[str, Any]) -> None:
    assert headline(replace(BASE, **change)).news != headline(BASE).news


@pytest.mark.parametrize("change", [{}, *FIGURES.values()])
def test_figures_are_no_news(change: dict[str, Any]) -> None:
    assert headline(replace(LATER, **change)).news == headline(BASE).news


def test_trouble_with_the_deadline_is_news_and_its_figures_are_not() -> None:
    def news(spent: float, words: str) -> str:
        deadline = DeadlineStatus(BASE.updated, 40.0, spent, words)
        return headline(replace(BASE, deadline=deadline)).news

    assert news(1.0, "") == news(2.0, "") != headline(BASE).news
    assert news(1.0, "it ends at 06:40") == news(2.0, "it ends at 06:41") != news(2.0, "")


def test_shows_the_scalars_of_the_status_and_stays_small() -> None:
    failed = replace(BASE, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED)
    usage = (Usage("x" * MAX_MACHINE_NAME, "y" * MAX_MACHINE_NAME, 12345678.123, 12345678.123),) * MAX_USAGE
    progress = Progress(2**53, 12.34, 12345678.9, 12345678.9, 12345678.9, "x" * MAX_BASIS)
    deadline = DeadlineStatus(BASE.updated, 1e9, 1e9, "x" * MAX_WORDS, BASE.updated)
    failed = replace(failed, deadline=deadline)
    ended = replace(failed, progress=progress, reason="😀" * MAX_REASON, finished=BASE.updated, usage=usage)
    found = from_json(Headline, text := to_json(headline(ended)))
    for name in (
        "run",
        "uid",
        "phase",
        "failure",
        "updated",
        "finished",
        "world_size",
        "target_size",
        "step",
        "progress",
        "deadline",
        "usage",
    ):
        assert getattr(found, name) == getattr(ended, name), name
    assert len(found.reason) == MAX_MESSAGE
    assert len(text) < 17 * 1024
