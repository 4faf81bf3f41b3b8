"""A document in which everything is wrong is refused at the first thing: an error for each would cost seconds, and
gigabytes, in the loop that all agents of a run, or all runs of a triggerer, wait for."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from elastic_runtime.documents import from_plain
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.protocol.rank_link import decode_rank_message
from elastic_runtime.protocol.wire import decode
from elastic_runtime.run.status import Status

MANY = 200_000
NOON = "2026-01-01T12:00:00Z"
ATTACKS: list[tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = [
    (decode, {"type": "output", "rank_id": "w.0.0", "stream": "stdout", "lines": [1] * MANY, "time": NOON}),
    (decode_rank_message, {"type": "metrics", "values": {str(number): [] for number in range(MANY)}}),
    (decode_rank_message, {"type": "metrics", "values": [1] * MANY}),
    (partial(from_plain, Status), {"events": [1] * MANY}),
]


@pytest.mark.parametrize(("read", "plain"), ATTACKS, ids=["output", "metrics", "no-metrics", "status"])
def test_is_refused_at_once_and_in_few_words(read: Callable[[dict[str, Any]], object], plain: dict[str, Any]) -> None:
    before = time.process_time()
    tracemalloc.start()
    with pytest.raises(InvalidDocument) as caught:
        read(plain)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.process_time() - before < 2.0
    assert peak < 32 << 20
    assert len(str(caught.value)) < 500
