"""What OpenLineage is told: data in, outlets and checkpoint out; with its provider played, as it is no dependency."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

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
