"""The dashboards: every metric that they ask for exists, as the launcher and Airflow's listener call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind
from elastic_training.listeners import metrics

ROOT = Path(__file__).parents[3]
BOARDS = ROOT / "deploy" / "grafana"
OURS = re.compile(r"\b(?:airflow_)?elastic_training_\w+")


def board(name: str) -> dict[str, Any]:
    return dict(json.loads((BOARDS / name).read_text()))


def asked(name: str) -> set[str]:
    panels = board(name)["panels"]
    return {metric for panel in panels for target in panel["targets"] for metric in OURS.findall(target["expr"])}


def test_runs_are_shown_by_names_that_the_launcher_has_and_the_page_documents() -> None:
    documented = set(OURS.findall((ROOT / "docs" / "observing.md").read_text()))
    assert asked("prometheus.json") == documented
    launcher = (ROOT / "images/trainer/src/elastic_runtime/launcher/scraping.py").read_text()
    for metric in documented:
        own = metric.removeprefix("elastic_training_").removesuffix("_total")
        assert f'"{own}"' in launcher or f'{{PREFIX}}{own}"' in launcher, metric


def test_airflows_metrics_are_those_that_the_listener_sends() -> None:
    source = Path(metrics.__file__).read_text()
    counters = set(metrics._COUNTED.values()) | {f"runs.ended.{kind}" for kind in ("succeeded", *FailureKind)}
    for metric in asked("airflow.json"):
        own = metric.removeprefix("airflow_elastic_training_")
        dotted = own.replace("runs_ended_", "runs.ended.").replace("runs_", "runs.")
        assert dotted in counters or f'"{own}":' in source or own == metrics.SAMPLES, metric


@pytest.mark.parametrize("name", ["prometheus.json", "airflow.json"])
def test_a_dashboard_asks_which_prometheus_and_no_panel_lies_on_another(name: str) -> None:
    found = board(name)
    assert found["templating"]["list"][0]["type"] == "datasource"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places)
    assert {panel["datasource"]["uid"] for panel in found["panels"]} == {"${datasource}"}
