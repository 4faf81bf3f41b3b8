"""The files that came with the run, in a folder of this worker: laid down before its ranks, removed after them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.protocol.rank_link import SCRIPTS
from elastic_runtime.run.shipment import unpack
from elastic_runtime.run.spec import Shipment

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
"""Can be written to in a container whose file system is read-only."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """Files in a private folder (0700), which ranks may write to."""

    folder: Path
    names: frozenset[str]

    @classmethod
    def lay_down(cls, shipment: Shipment, within: Path | None) -> Scripts:
        """Write them into a new folder.

        Args:
            shipment: from the launcher; checked.
            within: where to make it; None: for temporary files (TMPDIR), else in shared memory.

        Raises:
            InvalidDocument: they are not what can be shipped.
            ClusterUnavailable: there is no place for them here.
        """
        files = unpack(shipment)
        folder = new_folder("scripts-", within)
        try:
            for name, content in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _no_place(error) from error
        return cls(folder, frozenset(files))

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the ranks' further variables beside ``environment``, which may have a PYTHONPATH."""
        before = environment.get("PYTHONPATH")
        return {SCRIPTS: str(self.folder), "PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder), before)))}

    def command(self, command: Sequence[str]) -> list[str]:
        """With the names of shipped files as absolute paths, so that they are found from any directory."""
        return [str(self.folder / word) if os.path.normpath(word) in self.names else word for word in command]

    def remove(self) -> None:
        """With all that ranks have written there. Blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)


def new_folder(prefix: str, within: Path | None) -> Path:
    """A private one.

    Args:
        prefix: of its name.
        within: where to make it; None: for temporary files (TMPDIR), else in shared memory.

    Raises:
        ClusterUnavailable: there is no place for it here.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    except OSError as error:
        if within is None and SHARED_MEMORY.is_dir():
            try:
                return Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_MEMORY))
            except OSError:
                pass
        raise _no_place(error) from error


def _no_place(error: OSError) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"no folder for files can be made on this worker: {error.strerror or error}. Give it a folder with room, "
        "named by TMPDIR (on Kubernetes a volume with empty_dir)"
    )
