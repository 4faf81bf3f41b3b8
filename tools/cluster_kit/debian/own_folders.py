"""Folders that kubelet and containerd have by names that no setting changes, of which each node needs its own.

A kubelet removes the logs of all pods that it does not know from /var/log/pods, once a minute. With several kubelets on
a machine, these are the logs of the other nodes' pods. So containerd and kubelet of a node share a mount namespace in
which these names lead into the node's folder; all that they mount in it is gone with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_NAMES = (
    Path("/run/containerd"),
    Path("/run/netns"),
    Path("/var/lib/cni"),
    Path("/var/log/containers"),
    Path("/var/log/pods"),
)
_SCRIPT = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'


def with_own_folders(folder: Path, command: Sequence[str | Path]) -> list[str | Path]:
    """What to run so that ``command`` sees folders of its own below ``folder``; makes them if need be."""
    pairs: list[str | Path] = []
    for name in _NAMES:
        own = folder / name.relative_to("/")
        for each in (own, name):
            each.mkdir(parents=True, exist_ok=True)
        pairs += [own, name]
    return ["unshare", "--mount", "--propagation=private", "sh", "-euc", _SCRIPT, "sh", *pairs, "--", *command]


def with_folders_of(pid: int, command: Sequence[str | Path]) -> list[str | Path]:
    """What to run so that ``command`` sees the files that another process sees, and its mounts."""
    return ["nsenter", f"--target={pid}", "--mount", "--", *command]
