"""The documentation's code is code, its DAGs are DAGs, and its reference has all that is public."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs_site.borrowed import BORROWED, text_of
from tests.documented import RECIPES, Recipe, dags, python_blocks
from tests.wheels.documents import NEEDS_3, SHIPPED

ROOT = Path(__file__).resolve().parents[3]
BLOCKS, DAGS = python_blocks(), dags()
REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))


@pytest.mark.parametrize("place", BLOCKS)
def test_every_block_of_python_is_python(place: str) -> None:
    ast.parse(BLOCKS[place], place)


def test_the_blocks_with_dags_are_found() -> None:
    assert {place.partition(":")[0] for place in DAGS} >= {"README.md", "docs/airflow.md", "docs/getting-started.md"}


@pytest.mark.parametrize("place", DAGS)
def test_airflow_takes_every_dag_that_is_shown(place: str, tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    for script in SHIPPED:
        (tmp_path / script).parent.mkdir(exist_ok=True)
        (tmp_path / script).write_text("")
    (tmp_path / "shown.py").write_text(BLOCKS[place])
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    assert bag.dags
    if not any(each in DAGS[place] for each in NEEDS_3):
        scheduled = [dag for dag in bag.dags.values() if dag.schedule is not None]
        assert [dag.dag_id for dag in scheduled if dag.start_date is None] == [], "Airflow 2.11 refuses it"


OF_THE_PROVIDER = re.compile(r"Operator\(|elastic_training|@task\.|Workers\(|dag\.get_task")
SCRIPTS = [
    (place, block)
    for place, block in BLOCKS.items()
    if not OF_THE_PROVIDER.search(block) and not place.startswith("docs/getting-started.md")
]
"""What ranks run. A test of its own follows docs/getting-started.md."""


@pytest.mark.parametrize(("place", "block"), SCRIPTS, ids=[place for place, _ in SCRIPTS])
def test_every_training_script_and_recipe_runs_in_a_test(place: str, block: str) -> None:
    page = place.partition(":")[0]
    found = [recipe.name for recipe in RECIPES if recipe.page == page and recipe.words in block]
    assert len(found) == 1, f"give it an entry in tests/documented.py, which makes it whole; it has {found}"


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.name for recipe in RECIPES])
def test_what_runs_a_recipe_is_there(recipe: Recipe) -> None:
    compile(recipe.script(Path("/tmp/shared")), recipe.name, "exec")
    assert recipe.place in ("hand", "sharded", "frameworks", "tensorflow") or (ROOT / recipe.place).exists()


@pytest.mark.parametrize("package", ["elastic_runtime", "elastic_runtime.torch", "elastic_runtime.tensorflow"])
def test_the_reference_has_what_scripts_import(package: str) -> None:
    source = (ROOT / "images/trainer/src" / package.replace(".", "/") / "__init__.py").read_text()
    (public,) = re.findall(r"^__all__ = (\[.*?\])$", source, re.DOTALL | re.MULTILINE)
    missing = [name for name in ast.literal_eval(public) if not re.search(rf"elastic_runtime\S*\b{name}\b", REFERENCE)]
    assert missing == []


def test_the_reference_has_what_the_provider_tells_airflow_of() -> None:
    from elastic_training.get_provider_info import get_provider_info

    info = get_provider_info()
    modules = [
        module
        for kind in ("operators", "sensors", "triggers")
        for group in info[kind]
        for module in group["python-modules"]
    ]
    assert [module for module in modules if f"{module}." not in REFERENCE] == []


@pytest.mark.parametrize("page", BORROWED)
def test_a_borrowed_page_has_the_text_and_links_of_its_file(page: str) -> None:
    text = text_of(ROOT, page, (ROOT / page).read_text())
    assert (ROOT / BORROWED[page]).read_text().splitlines()[0] == text.splitlines()[0]
    assert "<!-- text of" not in text


def test_links_of_a_borrowed_page_lead_where_they_did(tmp_path: Path) -> None:
    (tmp_path / "SECURITY.md").write_text(
        "[a](docs/a.md#b), [c](CHANGELOG.md), [d](#d), [e](https://e.example/x), ![f](docs/images/f.png)\n"
        "```\n[code](docs/a.md)\n```\n"
    )
    stub = "<!-- text of SECURITY.md -->\n[SECURITY.md](../../SECURITY.md)\nafter\n"
    assert text_of(tmp_path, "docs/project/security.md", stub) == (
        "[a](../a.md#b), [c](changelog.md), [d](#d), [e](https://e.example/x), ![f](../images/f.png)\n"
        "```\n[code](docs/a.md)\n```\nafter\n"
    )


WRITTEN = [
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/*.md", "dags/**/*.md", "images/**/*.md")
    for page in ROOT.glob(pattern)
]
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")


@cache
def prose_of(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors_of(page: Path) -> set[str]:
    """Of its headings, as a repository's view and the site make them."""
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.*)$", prose_of(page), re.M)
    ]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=[str(page.relative_to(ROOT)) for page in WRITTEN])
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for path, anchor in LINK.findall(prose_of(page)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            dead.append(f"{path}#{anchor}")
    assert dead == []


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^([a-z-]+(?:/[a-z-]+)?)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index", "images/README"} == listed
