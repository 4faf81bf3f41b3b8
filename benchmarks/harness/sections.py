"""``results.json`` and ``RESULTS.md``: each benchmark writes its own section of them and leaves the others as they are.

In ``RESULTS.md`` a section stands between two comments (:func:`_fence`); of what is outside of them, only the head is
kept. In ``results.json``, which is flat, each measure names its section.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

RESULTS = "results.json"
PAGE = "RESULTS.md"
HEAD = ("# Results", "", "Each section is written by its own benchmark ([README.md](README.md)); do not edit.")


class Section(StrEnum):
    """What is measured together, in the order of the page."""

    LAUNCHER = "launcher"
    TORCH = "torch"
    SHARDED = "sharded"
    CHECKPOINTS = "checkpoints"
    GPU = "gpu"
    TRACES = "traces"
    DEFERRED_RUNS = "deferred_runs"
    STATUS = "status"
    WORKERS = "workers"
    PAGE = "page"


def write_section(
    folder: Path, section: Section, lines: Sequence[str], measures: Mapping[str, Mapping[str, object]]
) -> None:
    """Put a section in the place of what it was before, in both files; make them where there are none.

    Args:
        folder: where the two files are, or will be.
        section: which.
        lines: Markdown, beginning with a heading of the second level.
        measures: figures by a name that is no other section's.

    Raises:
        ValueError: another section has a measure of that name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merged = _merged(read_measures(folder), section, measures)
    _replace(folder / RESULTS, json.dumps(merged, indent=2) + "\n")
    parts = _parts(folder / PAGE) | {section: "\n".join(lines).strip()}
    page = ["\n".join(HEAD)]
    for each in Section:
        if each in parts:
            begin, end = _fence(each)
            page.append(f"{begin}\n\n{parts[each]}\n\n{end}")
    _replace(folder / PAGE, "\n\n".join(page) + "\n")


def read_measures(folder: Path) -> dict[str, dict[str, object]]:
    """What ``results.json`` says, ``{measure: {"section": …, …}}``; nothing where it is not."""
    path = folder / RESULTS
    read: dict[str, dict[str, object]] = json.loads(path.read_text()) if path.exists() else {}
    return read


def _merged(
    before: Mapping[str, Mapping[str, object]], section: Section, measures: Mapping[str, Mapping[str, object]]
) -> dict[str, Mapping[str, object]]:
    others = {name: each for name, each in before.items() if each["section"] != section}
    if shared := sorted(others.keys() & measures.keys()):
        raise ValueError(f"{', '.join(shared)}: measured by section {others[shared[0]]['section']} already")
    order = list(Section)
    both = others | {name: {"section": section, **each} for name, each in measures.items()}
    # Stable: within a section the order is the benchmark's.
    return dict(sorted(both.items(), key=lambda item: order.index(Section(str(item[1]["section"])))))


def _fence(section: Section) -> tuple[str, str]:
    return f"<!-- begin {section} -->", f"<!-- end {section} -->"


def _parts(page: Path) -> dict[Section, str]:
    text = page.read_text() if page.exists() else ""
    found = {each: re.search("(.*?)".join(map(re.escape, _fence(each))), text, re.DOTALL) for each in Section}
    return {section: match[1].strip() for section, match in found.items() if match}


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
