"""Check the prose of README.md and of the pages in ``PAGES`` for forms that readers stop at: ``make lint-prose``.

Code, link targets and comments are not read. The cells of a table are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "SECURITY.md",
    "docs/airflow.md",
    "docs/batches.md",
    "docs/checkpoints.md",
    "docs/comparison.md",
    "docs/compatibility.md",
    "docs/configuration.md",
    "docs/cost.md",
    "docs/decisions/horovod-session.md",
    "docs/decisions/object-stores.md",
    "docs/deploy.md",
    "docs/evidence.md",
    "docs/examples.md",
    "docs/extending.md",
    "docs/failures.md",
    "docs/frameworks.md",
    "docs/getting-started.md",
    "docs/gpus.md",
    "docs/joining.md",
    "docs/kubernetes.md",
    "docs/observing.md",
    "docs/page.md",
    "docs/pausing.md",
    "docs/pools.md",
    "docs/project/testing-on-kubernetes.md",
    "docs/ray.md",
    "docs/reference/provider.md",
    "docs/reference/runtime.md",
    "docs/receipt.md",
    "docs/results.md",
    "docs/shards.md",
    "docs/slurm.md",
    "docs/spark.md",
    "docs/tensorflow.md",
    "docs/tested.md",
    "docs/torchrun.md",
    "docs/training-script.md",
    "docs/tries.md",
    "docs/troubleshooting.md",
)
"""Pages that are checked. Add a page once it has been rewritten."""
MOST_WORDS = 40
"""In a sentence."""
MOST_PARENTHESES = 1
MOST_SEMICOLONS = 1

_BANNED = {
    r"whoever|whosoever": "name the person or the program",
    r"whatsoever|wheresoever": "leave it out",
    r"thereby|hereby|therewith|herewith|thereof|hereof|therein|herein|thereupon|whereupon|whereby|wherein": "say 'so', "
    "'with it', 'in it'",
    r"nobody|no one|anybody": "name who, or use the passive: 'is not asked', 'any user'",
    r"newcomers?": "write 'new rank' or 'new worker'",
    r"one's own|of one's|(?:image|script|file|place|cluster)s? of (?:yours|your own)": "write 'your own ...'",
    r"of its own way": "write 'its own ...'",
    r"beforehand": "write 'before'",
    r"nonetheless|notwithstanding": "write 'still'",
    r"hears?|heard|heeds?|heeded": "software receives or handles; it does not hear",
    r"(?:is|are|was|were) told": "write 'receives', 'is notified' or 'gets'",
    r"that there is none": "name what is missing",
    r"who (?:it|they) (?:is|are)": "name the identity",
    r"would do|will do": "write 'is enough' or 'works'",
    r"(?:or|and) the like|and such(?=[.,)])": "name the things",
}  # fmt: skip
"""By pattern, what to do instead."""
_OPENINGS = re.compile(r"(?:Of|Who|Nor|What|Whether)\b")
_FENCE = re.compile(r"^ *```")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"(?<=[.!?:])[\"')]*\s+(?=[A-Z\"'(*`\d])|(?<=[.!?])$")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|St|No)\.$")
_WORD = re.compile(r"[^\W_][\w'’/.-]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One form that is to be changed."""

    line: int
    """Of the page, from 1, where its paragraph begins."""
    text: str
    """What is wrong, with the words, and what to do."""


def findings(text: str) -> list[Finding]:
    """Return all findings in a page of Markdown, in order."""
    found = []
    for line, paragraph in paragraphs(text):
        for pattern, remedy in _BANNED.items():
            found += [
                Finding(line, f"{word[0]!r}: {remedy}")
                for word in re.finditer(rf"\b(?:{pattern})\b", paragraph, re.IGNORECASE)
            ]
        for sentence in sentences(paragraph):
            found += [Finding(line, problem) for problem in _problems(sentence)]
    return found


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, list item, heading and table cell, with its first line. Code becomes ``X``."""
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    in_code, begun, gathered = False, 0, ""
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        fence = bool(_FENCE.match(raw))
        line = "" if fence or in_code else raw.strip()
        in_code ^= fence
        apart = not line or line.startswith(("#", "|")) or re.match(r"(?:[*-]|\d+\.) ", line)
        if apart and gathered:
            yield begun, _plain(gathered)
            gathered = ""
        if line.startswith("|"):
            yield from ((number, _plain(cell)) for cell in line.strip("|").split(" | ") if cell.strip(" -|"))
        elif line:
            begun = begun if gathered else number
            gathered = f"{gathered} {re.sub(r'^(?:#+|[*-]|[0-9]+[.]) ', '', line)}".strip()


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph. A colon before a capital ends one, too."""
    gathered = ""
    for part in _END.split(paragraph):
        gathered = f"{gathered} {part}".strip()
        if gathered and not _ABBREVIATION.search(gathered):
            yield gathered
            gathered = ""
    if gathered:
        yield gathered


def _plain(text: str) -> str:
    text = _CODE.sub("X", text)
    return _LINK.sub(r"\1", text).replace("**", "").strip()


def _problems(sentence: str) -> Iterator[str]:
    shown = sentence if len(sentence) <= 60 else f"{sentence[:57]}..."
    if (words := len(_WORD.findall(sentence))) > MOST_WORDS:
        yield f"{words} words, {MOST_WORDS} at most: split {shown!r}"
    if (pairs := sentence.count("(")) > MOST_PARENTHESES:
        yield f"{pairs} parentheses, {MOST_PARENTHESES} at most: split {shown!r}"
    if (chained := sentence.count(";")) > MOST_SEMICOLONS:
        yield f"{chained} semicolons, {MOST_SEMICOLONS} at most: write a list instead of {shown!r}"
    if _OPENINGS.match(sentence) and not sentence.endswith("?") and len(_WORD.findall(sentence)) > 4:
        yield f"begin with the subject: {shown!r}"


def main() -> int:
    """Exit status 1 if a page has findings."""
    count = 0
    for page in PAGES:
        for finding in findings((ROOT / page).read_text(encoding="utf-8")):
            print(f"{page}:{finding.line}: {finding.text}")
            count += 1
    print(f"prose: {len(PAGES)} pages, {count} findings")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
