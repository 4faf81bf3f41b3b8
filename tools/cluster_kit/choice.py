"""Which way to a cluster this machine offers."""

from __future__ import annotations

import os
from pathlib import Path

from cluster_kit import kind
from cluster_kit.backend import Backend
from cluster_kit.debian import lab
from cluster_kit.debian.places import Places
from cluster_kit.errors import NoWay
from cluster_kit.given import GivenCluster
from cluster_kit.shell import Progress

_STARTED = "backend"
"""File in the state folder: the name of what was started."""


def choose(state: Path, progress: Progress) -> Backend:
    """The cluster of KUBECONFIG if it answers, else what was started before, else kind, else the lab on Debian.

    Raises:
        NoWay: none of them.
    """
    reasons = []
    if (given := _given_kubeconfig(state)) is not None:
        if GivenCluster.answers(given):
            return GivenCluster(given)
        reasons.append(f"KUBECONFIG: no cluster answers behind {given}")
        progress.say(reasons[-1])
    started = state / _STARTED
    before = started.read_text() if started.exists() else None
    for name, possible, make in (
        (kind.KindCluster.name, kind.possible, lambda: kind.KindCluster(state / "kind", progress)),
        (lab.DebianLab.name, lab.possible, lambda: lab.DebianLab(Places.default(state / "debian"), progress)),
    ):
        if before is not None and before != name:
            continue
        if (why_not := possible()) is None:
            return make()
        reasons.append(f"{name}: {why_not}")
    found = "; ".join(reasons or ["KUBECONFIG: not set"])
    raise NoWay(
        f"this machine offers no way to a Kubernetes: {found}. "
        "Set KUBECONFIG to a cluster for tests, or install Docker and kind, or be root on Debian 12."
    )


def remember(state: Path, backend: Backend) -> None:
    """Note what is being started, so that the same is ended."""
    (state / _STARTED).write_text(backend.name)


def forget(state: Path) -> None:
    """What was started has ended."""
    (state / _STARTED).unlink(missing_ok=True)


def is_started(state: Path) -> bool:
    """Whether there is something that ``down`` would end."""
    return (state / _STARTED).exists()


def _given_kubeconfig(state: Path) -> Path | None:
    """Of KUBECONFIG, unless it is our own cluster's."""
    value = os.environ.get("KUBECONFIG", "")
    first = next((part for part in value.split(os.pathsep) if part), None)
    if first is None or state.resolve() in Path(first).resolve().parents:
        return None
    return Path(first)
