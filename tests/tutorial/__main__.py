"""Follows docs/getting-started.md from an empty folder, block by block: ``make test-tutorial``.

Blocks of ``sh`` are run by one shell, in their order; one of ``python`` after a path in backticks becomes that file.
At the end it looks at what the page promises: a run that succeeded, and whose world grew from 2 ranks to 4.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo_kit import processes  # noqa: E402 - what comes from tools/ needs the path

PAGE = ROOT / "docs" / "getting-started.md"
PROMISED = 600.0
"""Seconds that the page speaks of."""
COMMAND_TIMEOUT = 1500.0
"""Seconds; a machine may be busy otherwise."""
_PART = re.compile(
    r"^(`(?P<path>[^`\n]+\.py)`[^`]*?)?```(?P<kind>sh|python)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_END = "\n## What now\n"
"""What is run stands before it."""


def main() -> int:
    """Exit status 1 when something is not as the page says."""
    with tempfile.TemporaryDirectory(prefix="tutorial-") as name:
        folder = Path(name)
        begin = time.monotonic()
        status = follow(folder)
        taken = time.monotonic() - begin
        print(f"followed in {taken:.0f} s, the page says {PROMISED:.0f} at most", flush=True)
        problems = [f"the shell ended with {status}"] if status else list(wrong(folder))
    print("\n".join(problems) or "well")
    return int(bool(problems))


def script(page: str) -> str:
    """All that a reader types, as one script: blocks of a shell, and files that are written between them."""
    said = ["set -euo pipefail\n"]
    for number, found in enumerate(_PART.finditer(page.partition(_END)[0])):
        if found["kind"] == "sh":
            said.append(f"echo '--- block {number}, after '$SECONDS' s'\n{found['text']}")
        else:
            assert found["path"], f"no path before the block {found['text'][:40]!r}"
            said.append(f"cat > {found['path']} <<'END OF FILE'\n{found['text']}END OF FILE\n")
    return "".join(said)


def follow(folder: Path) -> int:
    """Run the page's script there, and end whatever it leaves. Returns the shell's status."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "VIRTUAL_ENV"))
    }
    port = _free_port()  # Airflow's usual one may be taken here.
    more = {
        processes.MARK: str(folder),
        "CLONE": str(ROOT),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
    }
    command = ["bash", "-c", script(PAGE.read_text())]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment | more, timeout=COMMAND_TIMEOUT, check=False
        ).returncode
    finally:
        for left in processes.end_marked(str(folder), grace=10.0):
            print(f"had to be ended: {left}", flush=True)


def wrong(folder: Path) -> Iterator[str]:
    """What is not as the page says."""
    statuses: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in folder.glob("home/elastic_training/*/status.json")
    ]
    if [each["phase"] for each in statuses] != ["succeeded"]:
        yield f"the runs ended as {[each['phase'] for each in statuses]}"
        return
    sizes = [world["size"] for world in statuses[0]["history"]]
    if sizes[0] != 2 or max(sizes) != 4:  # the last one is 0: all have left
        yield f"the world had the sizes {sizes}"
    if not (folder / "report.html").is_file():
        yield "there is no report"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
