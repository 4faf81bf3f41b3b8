"""Stores by scheme: ours, those of other packages, and what is said of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from elastic_runtime.checkpoint import open_store, store, validate_store_uri
from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.errors import InvalidSettings


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a package whose store is of the scheme ``tape``."""

    def install(value: str) -> None:
        found = [EntryPoint("tape", value, store.GROUP), EntryPoint("file", "nowhere:at_all", store.GROUP)]
        monkeypatch.setattr(store, "entry_points", lambda group: found)
        store._others.cache_clear()

    yield install
    store._others.cache_clear()


def made(uri: str, credentials: object) -> FileStore:
    found = FileStore("file:///tape")
    found.uri = f"{uri} with {credentials}"
    return found


def test_another_package_brings_a_store(installed: Callable[[str], None]) -> None:
    installed(f"{__name__}:made")
    validate_store_uri("tape://robot/7")
    assert open_store("tape://robot/7/", {"TAPE_KEY": "k"}).uri == "tape://robot/7 with {'TAPE_KEY': 'k'}"


def test_ours_go_before_those_of_others(installed: Callable[[str], None], tmp_path: Path) -> None:
    installed(f"{__name__}:made")
    assert type(open_store(tmp_path.as_uri())) is FileStore


def test_one_that_cannot_be_imported_is_known_at_parse_and_said_when_it_is_opened(
    installed: Callable[[str], None],
) -> None:
    installed("nowhere_at_all:made")
    validate_store_uri("tape://robot/7")
    with pytest.raises(InvalidSettings, match=r"tape:// \(nowhere_at_all:made\) cannot be imported.*Repair or remove"):
        open_store("tape://robot/7")


def test_a_scheme_that_nobody_has_names_those_that_there_are(installed: Callable[[str], None]) -> None:
    installed(f"{__name__}:made")
    with pytest.raises(
        InvalidSettings, match=r"^checkpoint_uri: no checkpoint store handles 'ftp://x'\. .*s3://.* or tape://…"
    ):
        validate_store_uri("ftp://x", "checkpoint_uri")
