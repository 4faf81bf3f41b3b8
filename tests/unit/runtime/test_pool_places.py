"""How many workers of a pool this machine can have, and which of its GPUs each has."""

from __future__ import annotations

import pytest

from elastic_runtime.pool.host import places
from elastic_runtime.pool.settings import MOST_WORKERS, PoolSettings

FOUR = {"CUDA_VISIBLE_DEVICES": ["0", "1", "2", "3"]}
PAIRS, EACH = ["0,1", "2,3"], ["0", "1", "2", "3"]


def resized(settings: PoolSettings, maximum: int) -> PoolSettings:
    return settings.resized(PoolSettings("a", settings.minimum, maximum, idle=settings.idle).size)


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        (PoolSettings("a", 0, 2, 1), EACH),
        (PoolSettings("a", 0, 2, 2), PAIRS),
        (PoolSettings("a", 0, 2), PAIRS),
        (resized(PoolSettings("a", 0, 4), 2), EACH),
        (resized(PoolSettings("a", 0, 1, 1), 4), EACH),
    ],
)
def test_each_place_has_gpus_of_its_own_whatever_the_size(settings: PoolSettings, devices: list[str]) -> None:
    capacity, shares = places(settings, FOUR)
    assert [shares.environment(place)["CUDA_VISIBLE_DEVICES"] for place in range(capacity)] == devices


def test_without_gpus_there_is_no_limit() -> None:
    assert places(PoolSettings("a", 0, 2), {})[0] == MOST_WORKERS
