"""The built site: every link leads somewhere, nothing is fetched from elsewhere, and pages fit a phone.

``make test-site`` builds it first. Pictures of some pages go to ``build/screenshots/site``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "screenshots" / "site"
PAGES = sorted(SITE.rglob("*.html"))
WIDTHS = (390, 1280)
PICTURED = ("index.html", "airflow.html", "reference/provider.html")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a page names: anchors of its own, links, and what a browser loads by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="session")
def pages() -> dict[Path, Page]:
    assert len(PAGES) > 30, "build the site first: make test-site"
    return {path: Page(path) for path in PAGES}


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert dead == []


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    loaded = {link for page in pages.values() for link in page.loaded}
    assert [link for link in loaded if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc] == []


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.timeout(300)  # forty pages
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_do_not_complain(browser: Any, width: int) -> None:
    view = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    view.on("pageerror", lambda error: complaints.append(f"{view.url}: {error}"))
    view.on("console", lambda line: complaints.append(f"{view.url}: {line.text}") if line.type == "error" else None)
    view.on("request", lambda sent: complaints.append(sent.url) if sent.url.startswith("http") else None)
    for path in PAGES:
        view.goto(path.as_uri())
        wide = view.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            complaints.append(f"{path.relative_to(SITE)} is {wide} pixels wide")
        if (name := path.relative_to(SITE).as_posix()) in PICTURED:
            PICTURES.mkdir(parents=True, exist_ok=True)
            view.screenshot(path=PICTURES / f"{name.replace('/', '-').removesuffix('.html')}-{width}.png")
    view.close()
    assert complaints == []
