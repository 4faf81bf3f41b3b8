"""The worker's file with the hosts of the present world, new for each world.

One line a host, ``ADDRESS slots=N``, by the lowest rank there; ``N`` counts the ranks of the world, not all that would
fit. Workers with one address (those of this machine) are one host, since DeepSpeed takes each host once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from elastic_runtime.documents import write_atomically
from elastic_runtime.printable import printable
from elastic_runtime.protocol.wire import Host
from elastic_runtime.run.hostfile import is_address

log = logging.getLogger(__name__)


def write_hostfile(path: Path, hosts: Iterable[Host]) -> None:
    """Replace it, whole. What cannot be written is a warning: training goes on without.

    Args:
        path: of the file, in a folder that is made if need be. A link in its place is replaced and not followed; a
            folder that is reached by one is refused.
        hosts: as the launcher has said.
    """
    text = "".join(f"{each.address} slots={each.slots}\n" for each in hosts if is_address(each.address))
    try:
        if path.parent.resolve() != path.parent:
            raise OSError(f"{path.parent} is, or is behind, a link to {path.parent.resolve()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, 0o644)
    except OSError as error:
        log.warning("no hostfile: %s cannot be written: %s", printable(path), printable(error))
