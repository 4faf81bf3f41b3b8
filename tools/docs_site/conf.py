"""How Sphinx makes the site of docs/: `make site`.

The Markdown is CommonMark, as a repository's view shows it. The reference is read from the sources without importing
them, so that neither Airflow nor torch is needed. Nothing is fetched when a page is looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from docs_site.borrowed import BORROWED, text_of  # noqa: E402 - needs the path

_TITLE = "Elastic Training for Airflow"

project = _TITLE
html_title = _TITLE
extensions = ["myst_parser", "sphinx.ext.napoleon", "autoapi.extension"]
exclude_patterns = ["images/README.md"]
html_theme = "furo"
html_use_index = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
myst_heading_anchors = 4
myst_links_external_new_tab = False
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
pygments_style = "friendly"
pygments_dark_style = "monokai"

autoapi_dirs = [str(ROOT / "provider/src/elastic_training"), str(ROOT / "images/trainer/src/elastic_runtime")]
autoapi_generate_api_docs = False  # docs/reference/ says what is public
autoapi_add_toctree_entry = False
suppress_warnings = ["autoapi.python_import_resolution"]  # of constants, which no page shows
autoapi_python_class_content = "class"
napoleon_numpy_docstring = False


def setup(app: Any) -> None:
    """Called by Sphinx."""

    def read(app: Any, name: str, source: list[str]) -> None:
        page = f"docs/{name}.md"
        if page in BORROWED:
            # Otherwise the page is not read again when only that file has changed.
            app.env.note_dependency(str(ROOT / BORROWED[page]))
        source[0] = text_of(ROOT, page, source[0])

    app.connect("source-read", read)
