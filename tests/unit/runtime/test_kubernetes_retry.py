"""Which requests to Kubernetes are made again; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from elastic_runtime.errors import ClusterUnavailable, Conflict, ElasticError, InvalidSettings, MissingRight
from elastic_runtime.kubernetes.errors import TooBusy
from elastic_runtime.kubernetes.retry import persistently
from tests.unit.provider.virtual_time import run_virtually

AWAY, FORBIDDEN = ClusterUnavailable("away"), MissingRight("no")


def outcome(*errors: ElasticError | None, takes: float = 0.0) -> tuple[float, ElasticError | None, int]:
    """When it ends, with which error, and how many attempts are left unused; each attempt meets the next error."""
    left: Iterator[ElasticError | None] = iter(errors)

    async def ask() -> None:
        await asyncio.sleep(takes)
        if error := next(left):
            raise error

    async def main() -> tuple[float, ElasticError | None, int]:
        met = None
        try:
            await persistently(ask)
        except ElasticError as error:
            met = error
        return asyncio.get_running_loop().time(), met, len(list(left))

    return run_virtually(main())


@pytest.mark.parametrize(
    ("errors", "seconds"),
    [
        ((AWAY,), 0.1),
        ((AWAY, AWAY), 0.1 + 0.2),
        ((FORBIDDEN, FORBIDDEN, FORBIDDEN), 0.5 + 1 + 2),
        ((TooBusy("slow down", 7.0), TooBusy("slow down", 3.0)), 10.0),
    ],
)
def test_what_may_pass_is_tried_again(errors: tuple[ElasticError, ...], seconds: float) -> None:
    assert outcome(*errors, None) == (pytest.approx(seconds), None, 0)


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN, TooBusy("slow down", 20.0)])
def test_what_does_not_pass_is_raised_in_the_end(error: ElasticError) -> None:
    seconds, met, _ = outcome(*[error] * 10)
    assert met is error
    assert seconds <= 30


def test_a_server_that_takes_its_time_not_to_answer_is_asked_once() -> None:
    assert outcome(AWAY, None, takes=30.0) == (30.0, AWAY, 1)


@pytest.mark.parametrize("error", [Conflict("changed"), InvalidSettings("pods", "wrong", "Correct it")])
def test_what_is_the_callers_to_decide_is_raised_at_once(error: ElasticError) -> None:
    assert outcome(error, None) == (0.0, error, 1)
