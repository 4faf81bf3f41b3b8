"""What has to agree before a release: ``make dist`` asks it, and the workflow that publishes, with the tag.

Both distributions have one version, the built files have it, the change log has a section for it, and what PyPI shows
of a distribution has no link that leads nowhere there.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (Path("provider"), Path("images/trainer"))
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_RELATIVE = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


def problems(root: Path, files: Path | None = None, tag: str | None = None) -> Iterator[str]:
    """What does not agree, one line each.

    Args:
        root: of the repository.
        files: folder of the built distributions; None: they are not looked at.
        tag: that is released, as ``v0.2.0``; None: a section ``Unreleased`` of the change log will do.
    """
    versions = {}
    for project in PROJECTS:
        said = tomllib.loads((root / project / "pyproject.toml").read_text())
        source = (root / project / said["tool"]["hatch"]["version"]["path"]).read_text()
        versions[said["project"]["name"]] = _VERSION.findall(source)[0]
        readme = project / said["project"]["readme"]
        for link in _RELATIVE.findall((root / readme).read_text()):
            yield f"{readme} links to {link}, which PyPI does not have. Write what it is, or a whole address"
    if len(set(versions.values())) > 1:
        yield f"the distributions have different versions: {versions}. Write one into both __init__.py"
        return
    version = next(iter(versions.values()))
    if tag is not None and tag != f"v{version}":
        yield f"the tag is {tag}, and the distributions are {version}. Tag v{version}, or change the versions"
    sections = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if version not in sections and (tag is not None or "Unreleased" not in sections):
        yield f"CHANGELOG.md has no section {version}: it has {', '.join(sections) or 'none'}. Name it so"
    if files is not None:
        there = {path.name for path in files.iterdir()}
        for name in versions:
            stem = f"{name.replace('-', '_')}-{version}"
            yield from (
                f"{wanted} was not built"
                for wanted in (f"{stem}.tar.gz", f"{stem}-py3-none-any.whl")
                if wanted not in there
            )


def main() -> int:
    """Exit status 1 when something does not agree."""
    parser = argparse.ArgumentParser(description="Check that versions, change log, READMEs and built files agree.")
    parser.add_argument("--files", type=Path, help="folder of the built distributions")
    parser.add_argument("--tag", help="that is released, as v0.2.0")
    options = parser.parse_args()
    found = list(problems(ROOT, options.files, options.tag))
    print("\n".join(found) or "versions, change log, READMEs and files agree")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
