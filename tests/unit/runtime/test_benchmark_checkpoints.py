"""The checkpoint benchmark's figures, and the S3 that it is run against."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from benchmarks.durable.measures import NONE_LOST, TWENTIETH, Row, as_measures, table
from benchmarks.durable.sink import s3_sink
from benchmarks.harness.measures import Bound, Target
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream
from elastic_runtime.checkpoint.objects import upload
from elastic_runtime.checkpoint.s3 import S3Store
from elastic_runtime.errors import OwnershipLost


def test_a_row_compares_medians_and_tells_the_worst() -> None:
    row = Row("stall", "Stall", target=TWENTIETH, ours=[0.1, 0.2, 9.0], peer=[4.0, 4.0, 5.0])
    assert row.met is True
    plain = as_measures([row])["stall"]
    assert (plain["ours"], plain["peer"], plain["ratio"], plain["rounds"]) == (0.2, 4.0, 0.05, 3)
    assert plain["ours_worst"] == 9.0
    assert "| Stall (s) | 0.2 [0.15, 4.6] | 9 | 4 [4, 4.5] | 0.050" in table([row])[2]


def test_a_deadline_is_for_the_worst_round() -> None:
    inside = Target(Bound.OURS_AT_MOST, 15)
    assert Row("left", "", target=inside, ours=[1, 1, 16]).met is True
    late = Row("left", "", target=inside, ours=[1, 1, 16], worst=True)
    assert late.met is False
    assert "| worst <= 15 | **no** |" in table([late])[2]


def test_without_a_peer_there_is_no_ratio() -> None:
    row = Row("lost", "Lost", "steps", NONE_LOST, ours=[0, 0], worst=True)
    assert (row.ratio, row.met) == (None, True)
    assert as_measures([row])["lost"]["peer"] is None


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with s3_sink() as environment:
        yield environment


def test_the_sink_is_s3_enough_for_a_store(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(upload, "PIECE", 5 << 20)
    store = S3Store("s3://bucket/run")
    checkpoints = Checkpoints(store, fence=2, keep=1)

    def model(stream: PartStream) -> None:
        stream.write(bytes(11 << 20))

    names = []
    for step in (1, 2):
        stored = checkpoints.write(step, datetime.now(UTC), {"model.pt": model})
        assert stored is not None
        checkpoints.retire(stored)
        names.append(stored.name)
    assert store.names() == names[1:]
    assert store.read_manifest(names[1])
    with pytest.raises(OwnershipLost):
        store.claim(1)
    assert [each.key for each in store.bucket.objects("run/")] == [
        "run/.register",
        f"run/{names[1]}/manifest.json",
        f"run/{names[1]}/model.pt",
    ]
    store.close()
