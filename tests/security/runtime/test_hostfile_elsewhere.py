"""A hostfile is written where it was asked for, and nowhere that a link leads to; no line of it is somebody's own."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from elastic_runtime.agent.ranks import write_hostfile
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.wire import Host
from elastic_runtime.run.spec import RunSpec

HOSTS = (Host("10.0.0.1", 2), Host("10.0.0.2", 1))
LINES = "10.0.0.1 slots=2\n10.0.0.2 slots=1\n"


def test_is_written_whole_for_whoever_reads(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "mpi" / "hostfile"
    write_hostfile(path, HOSTS)
    assert path.read_text() == LINES
    write_hostfile(path, HOSTS[:1])
    assert path.read_text() == "10.0.0.1 slots=2\n"
    assert (path.stat().st_mode & 0o777, [each.name for each in path.parent.iterdir()]) == (0o644, ["hostfile"])


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "authorized_keys", tmp_path.resolve() / "hostfile"
    victim.write_text("mine")
    path.symlink_to(victim)
    write_hostfile(path, HOSTS)
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", LINES, False)


def test_a_folder_behind_a_link_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = tmp_path.resolve()
    (base / "home").mkdir()
    (base / "mpi").symlink_to(base / "home")
    with caplog.at_level(logging.WARNING):
        write_hostfile(base / "mpi" / "hostfile", HOSTS)
        write_hostfile(base / "mpi" / "further" / "hostfile", HOSTS)
    assert not list((base / "home").iterdir())
    assert caplog.text.count("behind, a link") == 2


def test_what_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mpi").write_text("a file")
    write_hostfile(tmp_path.resolve() / "mpi" / "hostfile", HOSTS)
    assert "no hostfile" in caplog.text


def test_no_line_of_it_is_somebody_elses(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "hostfile"
    write_hostfile(path, (Host("10.0.0.9 slots=9\nevil.example", 1), Host("fe80::1%x\ny", 1), *HOSTS))
    assert path.read_text() == LINES


@pytest.mark.parametrize(
    "path",
    [
        "hostfile", "", "/", "/etc/mpi/", "/etc/../root/hostfile", "//etc/hostfile", "/etc/./hostfile", "/a\n/b",
        "/proc/self/mem", "/sys/power/state", "/dev/shm/hostfile", "/run/elastic-training/tls/ca.crt",
        "/" + "a" * 300,
    ],
)  # fmt: skip
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(InvalidSettings, match="hostfile"):
        RunSpec("digits", "uid", ("python",), hostfile=path)
    assert RunSpec("digits", "uid", ("python",), hostfile="/etc/mpi/hostfile").hostfile == "/etc/mpi/hostfile"
