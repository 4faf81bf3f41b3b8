"""The files that came with the run, in a folder of this worker: laid down before its ranks, removed after them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.agent.work_folder import new_folder, no_place
from elastic_runtime.protocol.rank_link import SCRIPTS
from elastic_runtime.run.shipment import unpack
from elastic_runtime.run.spec import Shipment


@dataclass(frozen=True, slots=True)
class Scripts:
    """Files in a private folder (0700), which ranks may write to."""

    folder: Path
    names: frozenset[str]

    @classmethod
    def lay_down(cls, shipment: Shipment, within: Path) -> Scripts:
        """Write them into a new folder.

        Args:
            shipment: from the launcher; checked.
            within: where to make it.

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
            raise no_place(error) from error
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
