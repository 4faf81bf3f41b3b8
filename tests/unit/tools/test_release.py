"""A release whose parts do not agree is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from release import PROJECTS, ROOT, problems

VERSION = "0.1.0"
FILES = [
    f"{name}-{VERSION}{end}"
    for name in ("airflow_provider_elastic_training", "elastic_runtime")
    for end in (".tar.gz", "-py3-none-any.whl")
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what is compared, with the version 0.1.0 everywhere, and the built files."""
    for project, package in zip(PROJECTS, ("elastic_training", "elastic_runtime"), strict=True):
        (tmp_path / project / "src" / package).mkdir(parents=True)
        (tmp_path / project / "src" / package / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
        (tmp_path / project / "README.md").write_text("[a](https://a.example/b), [b](#c)\n")
        shutil.copy(ROOT / project / "pyproject.toml", tmp_path / project)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2026-12-01)\n")
    (tmp_path / "dist").mkdir()
    for name in FILES:
        (tmp_path / "dist" / name).touch()
    return tmp_path


def found(repository: Path, tag: str | None = f"v{VERSION}") -> list[str]:
    return list(problems(repository, repository / "dist", tag))


def test_this_repository_agrees() -> None:
    assert list(problems(ROOT)) == []


def test_what_agrees_is_let_through(repository: Path) -> None:
    assert found(repository) == []


def test_different_versions_are_told(repository: Path) -> None:
    (repository / "provider/src/elastic_training/__init__.py").write_text('__version__ = "0.2.0"\n')
    (problem,) = found(repository)
    assert "different versions" in problem
    assert "0.2.0" in problem


def test_another_tag_is_told(repository: Path) -> None:
    (problem,) = found(repository, "v0.2.0")
    assert "the tag is v0.2.0" in problem


def test_a_change_log_without_the_version_is_told_and_unreleased_is_enough_before_a_tag(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    (problem,) = found(repository)
    assert "has no section 0.1.0: it has Unreleased" in problem
    assert found(repository, tag=None) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_not_built_is_told(repository: Path, name: str) -> None:
    (repository / "dist" / name).unlink()
    assert found(repository) == [f"{name} was not built"]


def test_a_link_that_leads_nowhere_on_pypi_is_told(repository: Path) -> None:
    (repository / "provider/README.md").write_text("[more](../docs/airflow.md)\n")
    (problem,) = found(repository)
    assert "provider/README.md links to ../docs/airflow.md" in problem
