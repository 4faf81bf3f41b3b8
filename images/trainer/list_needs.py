"""Print what this distribution needs for some of its extras, itself, torch and horovod excepted: for the image's build.

usage: list_needs.py PYPROJECT EXTRA...

So the image's layer with everything else changes when pyproject.toml does, not with each change of the sources.
"""

import re
import sys
import tomllib
from pathlib import Path

ELSEWHERE = {"elastic-runtime", "horovod", "torch"}


def main(pyproject: str, *extras: str) -> None:
    """One requirement a line."""
    project = tomllib.loads(Path(pyproject).read_text())["project"]
    needs = project["dependencies"] + [need for extra in extras for need in project["optional-dependencies"][extra]]
    wanted = {need for need in needs if re.split(r"[^\w-]", need, maxsplit=1)[0] not in ELSEWHERE}
    sys.stdout.writelines(f"{need}\n" for need in sorted(wanted))


main(*sys.argv[1:])
