"""The provider as Airflow's registry of providers lists one: ``provider.yaml``, from what the package tells Airflow.

``python tools/registry_entry.py FILE`` (``make dist``). Airflow's own schema of such files is the one that is met.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import yaml

from elastic_training import __version__
from elastic_training.get_provider_info import get_provider_info

ROOT = Path(__file__).resolve().parent.parent


def entry(info: dict[str, Any], version: str, epoch: int) -> dict[str, Any]:
    """What stands in the file.

    Args:
        info: as ``get_provider_info()`` gives it.
        version: of this release.
        epoch: seconds since 1970 at which it was prepared.
    """
    head = {name: info[name] for name in ("package-name", "name", "description")}
    release = {"state": "ready", "lifecycle": "incubation", "source-date-epoch": epoch, "versions": [version]}
    return head | release | {name: value for name, value in info.items() if name not in head}


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    words = ["git", "log", "-1", "--format=%ct"]
    epoch = int(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(entry(get_provider_info(), __version__, epoch), sort_keys=False, width=110)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
