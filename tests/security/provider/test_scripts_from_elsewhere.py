"""A DAG's folder that others can write to: what lies elsewhere on Airflow's machine is not shipped, nor waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.shipment import MAX_UNPACKED
from elastic_training.settings import scripts as scripts_module
from elastic_training.settings.scripts import check_scripts, read_scripts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "key.pem").write_text("secret")
    (tmp_path / "dags" / "lib").mkdir(parents=True)
    (tmp_path / "dags" / "lib" / "help.py").write_text("")
    return tmp_path / "dags"


@pytest.mark.parametrize("script", ["lib", "lib/key.py"])
def test_a_link_is_not_followed(folder: Path, script: str) -> None:
    (folder / "lib" / "key.py").symlink_to(folder.parent / "elsewhere" / "key.pem")
    for use in (check_scripts, read_scripts):
        with pytest.raises(InvalidSettings, match="is a link"):
            use([script], [folder])


@pytest.mark.parametrize("script", ["far", "far/key.pem", "."])
def test_a_folder_that_is_a_link_is_not_entered(folder: Path, script: str) -> None:
    (folder / "far").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(InvalidSettings, match="is a link"):
        read_scripts([script], [folder])


def test_a_link_that_comes_after_the_look_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scripts_module._found

    def swapped(*arguments: object) -> dict[str, Path]:
        files = found(*arguments)
        (folder / "lib" / "help.py").unlink()
        (folder / "lib" / "help.py").symlink_to(folder.parent / "elsewhere" / "key.pem")
        return files

    monkeypatch.setattr(scripts_module, "_found", swapped)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_scripts(["lib"], [folder])


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "lib" / "pipe.py")
    for script in ("lib", "lib/pipe.py"):
        with pytest.raises(InvalidSettings, match="neither a file nor a folder"):
            read_scripts([script], [folder])


def test_a_file_that_grows_after_the_look_is_read_no_further_than_there_is_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scripts_module._found

    def grown(*arguments: object) -> dict[str, Path]:
        files = found(*arguments)
        with (folder / "lib" / "help.py").open("wb") as stream:
            stream.truncate(2**40)
        return files

    monkeypatch.setattr(scripts_module, "_found", grown)
    with pytest.raises(InvalidSettings, match=f"more than {MAX_UNPACKED} bytes"):
        read_scripts(["lib"], [folder])


def test_a_huge_folder_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts_module, "MOST_SEEN", 50)
    for number in range(60):
        (folder / "lib" / f"empty-{number}").mkdir()
    with pytest.raises(InvalidSettings, match="more than 50 entries"):
        check_scripts(["lib"], [folder])
