"""From what a person writes at a terminal to a run in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings, RunNotFound
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import cluster_called, own_name
from elastic_training.clusters.types import RunRef
from elastic_training.console.command.output import print_error
from elastic_training.console.places import FoundRun, Listing, list_runs
from elastic_training.redaction.free_text import Hide
from elastic_training.redaction.values import Secrets

PLACE_TIMEOUT = 15.0
"""Seconds for each place."""
_FEW = 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """The run that is meant."""

    cluster: Cluster
    found: FoundRun

    @property
    def ref(self) -> RunRef:
        """Return the reference for the cluster."""
        return self.found.ref


async def listing(places: Sequence[str]) -> Listing:
    """List the runs. Places that do not answer are reported."""
    seen = await list_runs(places, PLACE_TIMEOUT)
    for each in seen.unreachable:
        print_error(f"{each.place}: {each.message}")
    return seen


async def choose(places: Sequence[str], name: str) -> Chosen:
    """The run of that name, or the only one whose name begins so.

    Raises:
        RunNotFound: there is none.
        ClusterUnavailable: there is none in the places that answer.
        InvalidSettings: there are several.
    """
    seen = await listing(places)
    exact = [each for each in seen.runs if each.ref.name == name]
    found = exact or [each for each in seen.runs if name and each.ref.name.startswith(name)]
    if not found:
        if seen.unreachable:
            raise ClusterUnavailable(f"no place that answers has a run {name}")
        raise RunNotFound(f"no run is named {name} in {', '.join(places)}. List runs with: elastic-training runs")
    if len(found) > 1:
        few = ", ".join(f"{each.ref.name} in {each.place}" for each in found[:_FEW])
        more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
        raise InvalidSettings("RUN", f"{name!r} may be {few}{more}", "Write more of the name, or its --place")
    return Chosen(cluster_called(await asyncio.to_thread(own_name, found[0].place)), found[0])


async def hiding(chosen: Chosen) -> Hide:
    """What takes the run's secrets out of its texts: a terminal may be recorded, and a report be passed on."""
    return Secrets.of(await chosen.cluster.spec(chosen.ref)).hide
