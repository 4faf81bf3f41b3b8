"""Writes the manifests of runs with many combinations of settings, a file of YAML for each: ``make test-manifests``.

Every value of every setting meets every value of every other one in at least one run (all pairs).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.observe import ObserveSpec, PrometheusSpec
from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import CheckpointSpec, JupyterSpec
from elastic_training.clusters.kubernetes.manifests.objects import Capabilities
from elastic_training.settings import Pods, PodShape, SecretRef, Volume
from elastic_training.settings.pods import Hardware
from tests.unit.provider.manifests_bench import ROOT_UID, SPEC, TLS, objects_of

_ZONE = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]}
_SHAPE = PodShape(
    resources={"requests": {"cpu": "100m", "memory": 1e8}, "limits": {"memory": "1Gi"}},
    node_selector={"pool": "ml"},
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_ZONE]}}},
    tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    template={"spec": {"initContainers": [{"name": "fetch", "image": "fetch:1"}], "terminationGracePeriodSeconds": 5}},
)
_RAW = {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "worker": (PodShape(), _SHAPE),
    "launcher": (PodShape(), _SHAPE),
    "hardware": (
        Hardware(),
        Hardware(gpus=1, spot=True),
        Hardware(gpus=8, shm="2Gi"),
        Hardware(gpus=2, gpu_resource="amd.com/gpu", spot=True),
    ),
    "volumes": (
        [],
        [Volume("/claim", claim="data", read_only=True, sub_path="mnist"), Volume("/secret", secret="a")],
        [Volume("/config", config_map="a"), Volume("/scratch", empty_dir="1Gi"), Volume("/more", empty_dir=True)],
        [Volume("/raw", raw=_RAW), Volume("/csi", raw={"csi": {"driver": "csi.example.com", "readOnly": True}})],
    ),
    "secrets": (
        [],
        [SecretRef("a"), SecretRef("b", key="k", env="K")],
        [SecretRef("c", mount="/c"), SecretRef("c", key="k", mount="/k")],
    ),
    "image_pull_secrets": ([], ["registry"]),
    "image_pull_policy": (None, "Always"),
    "env": ({}, {"NCCL_DEBUG": "INFO", "COUNT": "3"}),
    "labels": ({}, {"team": "vision"}),
    "annotations": ({}, {"example.com/note": "any text, ünïcode too"}),
    "launcher_image": (None, "registry/launcher:1"),
    "queue": (None, "team"),
    "priority_class": (None, "low"),
    "scheduler_name": (None, "another"),
    "worker_service_account": (None, "reader"),
    "run_as_user": (None, 2000),
    "jupyter": (None, JupyterSpec("notebook/token", 8888, "2Gi")),
    "observe": (ObserveSpec(), ObserveSpec(prometheus=PrometheusSpec(9401, "/scrape/token", "scraper/token"))),
    "checkpoint": (None, CheckpointSpec("s3://bucket/runs")),
    "join": (None, JoinSpec(networks=("10.0.0.0/16", "fd00::/8"))),
    "scripts": (None, pack({"train.py": b"print()"})),
    "credentials": ({}, {"AWS_SECRET_ACCESS_KEY": "made-up"}),
    "disruption_budgets": (True, False),
}
"""By field of Pods, of RunSpec, or of what the two are turned into manifests with."""
_OF_THE_SPEC = ("jupyter", "observe", "checkpoint", "join", "scripts")


def all_pairs() -> Iterator[dict[str, int]]:
    """Choices, by their index, until every two values of two settings have met."""
    draw = random.Random(0)
    fields = list(CHOICES)
    missing = {
        ((one, i), (two, j))
        for one, two in combinations(fields, 2)
        for i in range(len(CHOICES[one]))
        for j in range(len(CHOICES[two]))
    }

    def met(row: dict[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
        return {((one, row[one]), (two, row[two])) for one, two in combinations(fields, 2)} & missing

    def drawn() -> dict[str, int]:
        return {field: draw.randrange(len(CHOICES[field])) for field in fields}

    while missing:
        wanted = dict(min(missing))
        row = max(({**drawn(), **wanted} for _ in range(50)), key=lambda row: len(met(row)))
        missing -= met(row)
        yield row


def manifests(row: Mapping[str, int]) -> list[dict[str, Any]]:
    """Of a run with these choices, as they are sent to an API server."""
    chosen = {field: CHOICES[field][index] for field, index in row.items()}
    spec = replace(SPEC, **{field: chosen.pop(field) for field in _OF_THE_SPEC})
    more: dict[str, Any] = {
        "capabilities": Capabilities(disruption_budgets=chosen.pop("disruption_budgets")),
        "credentials": chosen.pop("credentials"),
    }
    objects = objects_of(Pods(image="registry/trainer:1", **chosen), spec, **more)
    return [objects.root(), *objects.first(ROOT_UID, TLS), *objects.rest(ROOT_UID, "10.96.7.7")]


class _Plain(yaml.SafeDumper):  # type: ignore[misc]  # which has no types
    """Writes what occurs twice twice, not as an alias, which some readers do not take."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(folder: Path) -> None:
    """Write them, and what is applied by hand from deploy/."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.yaml"):
        old.unlink()
    for number, row in enumerate(all_pairs()):
        text = yaml.dump_all(manifests(row), Dumper=_Plain, sort_keys=False)
        (folder / f"run-{number:03d}.yaml").write_text(f"# {row}\n{text}")
    for path in Path("deploy").glob("rbac*.yaml"):  # Beside values for Helm.
        (folder / f"deploy-{path.name}").write_text(path.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
