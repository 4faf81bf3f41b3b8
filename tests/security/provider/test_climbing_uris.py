"""A parameter of a DAG run in a checkpoint URI, by which somebody would have another training's folder."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from elastic_runtime.checkpoint import open_store, validate_store_uri
from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from tests.unit.provider.operator_bench import operator, trying

TEAMS = (
    "..",
    ".",
    "../../secret",
    "a/../../b",
    "%2e%2e",
    ".%2E",
    "%252e%252e/x",
    "a%2f..%2fb",
    "..\\b",
    "a%5c..%5cb",
    ".. ",
)


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("base", ["s3://bucket", "gs://bucket", "az://container", "file:///srv"])
def test_a_part_that_climbs_is_refused_by_every_store(base: str, team: str) -> None:
    for use in (validate_store_uri, open_store):
        with pytest.raises(InvalidSettings, match="leads out of its folder"):
            use(f"{base}/teams/{team}/runs")


@pytest.mark.parametrize("team", ["a..b", "...", "v1.2", "%41", "größer", "a b"])
def test_dots_in_names_are_none(team: str) -> None:
    validate_store_uri(f"s3://bucket/teams/{team}/runs")


@pytest.mark.parametrize("team", TEAMS)
def test_no_run_is_created(fake: FakeCluster, team: str) -> None:
    train = operator(checkpoint_uri="s3://bucket/teams/{{ params.team }}/runs", wait_for_completion=False)
    train.render_template_fields({"params": {"team": team}, "ti": trying()})
    with pytest.raises((InvalidSettings, AirflowFailException), match="leads out of its folder"):
        train.execute({"ti": trying()})
    assert not fake.runs
