"""What OpenLineage is told: data in, outlets and checkpoint out; with its provider played, as it is no dependency."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from elastic_runtime.checkpoint.receipts import Segment, write_segment
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Checkpoint
from elastic_training.clusters.fake import FakeCluster
from elastic_training.exceptions import TrainingFailed
from elastic_training.operators.lineage import dataset_of
from tests.unit.provider.operator_bench import NAME, operator, trying
from tests.unit.provider.test_changes import NOON


@dataclass(frozen=True)
class Dataset:
    namespace: str
    name: str
    facets: dict[str, Facet] = field(default_factory=dict, compare=False)


class Facet:
    def with_additional_properties(self, **properties: Any) -> Facet:
        vars(self).update(properties)
        return self


@dataclass
class Lineage:
    inputs: list[Dataset] = field(default_factory=list)
    outputs: list[Dataset] = field(default_factory=list)


class Manager:
    @staticmethod
    def convert_to_ol_dataset(thing: Any) -> Dataset | None:
        return Dataset(*dataset_of(thing.uri)) if isinstance(thing, Asset) else None


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of the OpenLineage provider and client that are used."""
    played = {
        "airflow.providers.openlineage.extractors.manager": {"ExtractorManager": Manager},
        "airflow.providers.openlineage.extractors": {"OperatorLineage": Lineage},
        "airflow.providers.openlineage": {},
        "openlineage.client.event_v2": {"OutputDataset": Dataset},
        "openlineage.client.facet_v2": {"DatasetFacet": Facet},
        "openlineage.client": {},
        "openlineage": {},
    }
    for name, names in played.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)


IN, OUT = Asset("s3://bucket/data"), Asset("s3://bucket/model")
WRITTEN = Checkpoint("s3://bucket/runs/nightly/40", 40, NOON)


def test_inlets_outlets_and_the_checkpoint(fake: FakeCluster, provider: None) -> None:
    training = operator(inlets=[IN, "no asset"], outlets=[OUT])
    fake.script(lambda: fake.publish(NAME, checkpoint=WRITTEN), lambda: fake.succeed(NAME))
    training.execute({"ti": trying()})
    told = training.get_openlineage_facets_on_complete(SimpleNamespace())
    assert told.inputs == [Dataset("s3://bucket", "data")]
    assert told.outputs == [Dataset("s3://bucket", "model"), Dataset("s3://bucket", "runs/nightly/40")]


def test_a_failed_training_has_its_checkpoint(fake: FakeCluster, provider: None) -> None:
    training = operator()
    fake.script(
        lambda: fake.publish(NAME, checkpoint=WRITTEN), lambda: fake.fail(NAME, FailureKind.LAUNCHER_LOST, "gone")
    )
    with pytest.raises(TrainingFailed):
        training.execute({"ti": trying()})
    told = training.get_openlineage_facets_on_complete(SimpleNamespace())
    assert told.outputs == [Dataset("s3://bucket", "runs/nightly/40")]


SEGMENT = Segment(
    checkpoint="ckpt-f000000000001-s000000000040-t01795262401000-ff1d3842", manifest="a" * 64, parts={}, after="",
    previous="", start=0, step=40, time=NOON,
)  # fmt: skip


def ended_with(fake: FakeCluster, checkpoint: str, **arguments: Any) -> Any:
    """What a training tells whose newest checkpoint is this one."""
    training = operator(**arguments)
    written = replace(WRITTEN, uri=checkpoint)
    fake.script(lambda: fake.publish(NAME, checkpoint=written), lambda: fake.succeed(NAME))
    training.execute({"ti": trying()})
    return training.get_openlineage_facets_on_complete(SimpleNamespace())


def test_a_checkpoint_has_the_end_of_its_receipt(fake: FakeCluster, provider: None, tmp_path: Path) -> None:
    folder = f"{tmp_path.as_uri()}/nightly"
    with closing(open_store(folder)) as store:
        store.claim(1)
        digest = write_segment(store, SEGMENT)

    told = ended_with(fake, f"{folder}/{SEGMENT.checkpoint}", checkpoint_uri=tmp_path.as_uri())

    assert vars(told.outputs[0].facets["elasticTraining_receipt"]) == {
        "checkpoint": SEGMENT.checkpoint,
        "step": 40,
        "manifestSha256": "a" * 64,
        "segment": f"{folder}/receipt/{SEGMENT.checkpoint}.json",
        "segmentSha256": digest,
    }


def test_without_a_receipt_there_is_no_facet_and_the_log_says_why(
    fake: FakeCluster, provider: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(f"{tmp_path.as_uri()}/nightly")) as store:
        store.claim(1)
    uri = f"{tmp_path.as_uri()}/nightly/{SEGMENT.checkpoint}"
    told = ended_with(fake, uri, checkpoint_uri=tmp_path.as_uri())
    assert told.outputs[0].facets == {}
    assert f"OpenLineage is told of no receipt of {uri}: " in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["other", "own/../other", "own/%2e%2e/other", "own/.."])
def test_nothing_is_read_where_the_task_has_no_checkpoints(
    fake: FakeCluster, provider: None, tmp_path: Path, folder: str
) -> None:
    for each in (tmp_path, tmp_path / "other"):
        with closing(open_store(each.as_uri())) as store:
            store.claim(1)
            write_segment(store, SEGMENT)
    written = f"{tmp_path.as_uri()}/{folder}/{SEGMENT.checkpoint}"
    told = ended_with(fake, written, checkpoint_uri=f"{tmp_path.as_uri()}/own")
    assert told.outputs[0].facets == {}


def test_a_training_that_did_not_run_tells_its_inlets(provider: None) -> None:
    told = operator(inlets=[IN]).get_openlineage_facets_on_complete(None)
    assert (told.inputs, told.outputs) == ([Dataset("s3://bucket", "data")], [])


def test_without_the_provider_nothing_is_imported() -> None:
    operator(inlets=[IN])
    assert not any(name.startswith("openlineage") for name in sys.modules)


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("s3://bucket/runs/a/", ("s3://bucket", "runs/a")),
        ("gs://bucket", ("gs://bucket", "/")),
        ("gcs://bucket/a", ("gs://bucket", "a")),
        ("file:///srv/runs/a", ("file", "/srv/runs/a")),
    ],
)
def test_names_are_openlineages(uri: str, named: tuple[str, str]) -> None:
    assert dataset_of(uri) == named
