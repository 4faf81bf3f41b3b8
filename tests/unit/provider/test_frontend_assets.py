"""The page that the wheel ships is made of the sources that lie beside it; this needs no node to tell."""

import hashlib
import os
from importlib.resources import files
from pathlib import Path

FRONTEND = Path(__file__).parents[3] / "provider" / "frontend"
STATIC = files("elastic_training") / "static"
REMEDY = "the page is not built from these sources: run make frontend"


def sources() -> list[str]:
    """Of ``vite.config.ts``'s digest, in its order."""
    below = [
        os.path.relpath(Path(folder, name), FRONTEND)
        for folder, _, names in os.walk(FRONTEND / "src")
        for name in names
    ]
    return sorted([*below, "index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"])


def test_the_assets_are_built_from_the_sources() -> None:
    digest = hashlib.sha256()
    for name in sources():
        content = (FRONTEND / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    assert (STATIC / "built-from.txt").read_text().strip() == digest.hexdigest(), REMEDY


def test_the_page_asks_nobody_else() -> None:
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert page.count("<script") == 1
    assert 'src="static/page.js"' in page
    assert "://" not in page


def test_the_assets_are_small() -> None:
    assert sum(len(each.read_bytes()) for each in STATIC.iterdir()) < 400_000
