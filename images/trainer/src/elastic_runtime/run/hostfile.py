"""The file with the hosts of the present world, for ``mpirun`` and DeepSpeed: where it may be, what may be in it."""

from __future__ import annotations

import ipaddress
import posixpath

from elastic_runtime.errors import InvalidSettings

HOSTFILE = "/etc/mpi/hostfile"
"""Where operators for MPI on Kubernetes have it."""
_LONGEST = 255
"""Characters of its path."""
_NOT_IN = ("/dev", "/proc", "/run/elastic-training", "/sys")


def check_hostfile(path: object) -> None:
    """Of a path in a worker. Raises InvalidSettings."""
    remedy = f'Write the absolute path of a file in the workers, as in "{HOSTFILE}"'
    if not isinstance(path, str) or not path.startswith("/") or len(path) > _LONGEST or not path.isprintable():
        problem = f"it is not an absolute path of at most {_LONGEST} printable characters"
        raise InvalidSettings("hostfile", problem, remedy)
    if posixpath.normpath(path) != path or path.startswith("//") or path == "/":
        raise InvalidSettings("hostfile", f"{path!r} has dots, doubled slashes, or a slash at its end", remedy)
    if any(f"{path}/".startswith(f"{folder}/") for folder in _NOT_IN):
        raise InvalidSettings("hostfile", f"{path} is the system's, or this package's own", remedy)


def is_address(text: str) -> bool:
    """Whether this is an IP address as programs write it, without a zone."""
    try:
        return "%" not in text and str(ipaddress.ip_address(text)) == text
    except ValueError:
        return False
