"""The DAGs that README.md and docs/ show, parsed by the Airflow of an environment.

Run as a program, in that environment: ``python documents.py FOLDER`` prints as JSON what Airflow refuses in the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

SHIPPED = ("train.py", "lib/__init__.py")
"""What the DAGs that are shown ship from their folder."""
NEEDS_3 = ("checkpoint_asset",)
"""In blocks that say on their page that they are for Airflow 3."""


def refused(python: Path, dags: Mapping[str, str], *, second: bool) -> dict[str, str]:
    """Have that interpreter's Airflow parse DAGs, by place. Return why each that it refuses is refused.

    Args:
        second: whether it is Airflow 2, which is not given what needs 3.

    Raises:
        CalledProcessError: when Airflow itself does not start.
    """
    with tempfile.TemporaryDirectory(prefix="documents-") as name:
        folder = Path(name) / "dags"
        for script in SHIPPED:
            (folder / script).parent.mkdir(parents=True, exist_ok=True)
            (folder / script).write_text("")
        places = {}
        for number, (place, block) in enumerate(dags.items()):
            if not (second and any(each in block for each in NEEDS_3)):
                places[f"shown_{number}.py"] = place
                (folder / f"shown_{number}.py").write_text(block)
        environment = {
            **os.environ,
            "AIRFLOW_HOME": name,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{name}/airflow.db",
        }
        words = [str(python), str(Path(__file__).resolve()), str(folder)]
        answer = subprocess.run(words, env=environment, check=True, capture_output=True, text=True, cwd=name).stdout
        return {places[file]: why for file, why in json.loads(answer.splitlines()[-1]).items()}


def _parse(folder: Path) -> dict[str, str]:
    try:
        module = import_module("airflow.dag_processing.dagbag")
    except ImportError:  # Airflow 2, and 3.0
        module = import_module("airflow.models.dagbag")
    wrong = {}
    for path in sorted(folder.glob("shown_*.py")):
        # Each for itself: pages use the same ids.
        bag = module.DagBag(path)
        if bag.import_errors or not bag.dags:
            wrong[path.name] = "\n".join(bag.import_errors.values()) or "no DAG was found"
    return wrong


if __name__ == "__main__":
    print(json.dumps(_parse(Path(sys.argv[1]))))
