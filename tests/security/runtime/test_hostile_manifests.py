"""A writer of the store's folder, who puts another checkpoint there. It is passed over, whatever it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.errors import InvalidSettings, OwnershipLost, StoreUnavailable
from tests.security.runtime.hostile_checkpoints import CONTENT, NAME, lay, manifest, newest, part, signed, write

TERA = 1 << 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    """With an honest one, of step 1."""
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    write(checkpoints, 1)
    return checkpoints


def test_the_attacker_can_write_what_is_believed(checkpoints: Checkpoints, folder: Path) -> None:
    lay(folder, manifest(part()))
    assert newest(checkpoints) == (2, [])


@pytest.mark.parametrize(
    "name",
    ["../../secret", "/etc/hostname", "..", ".", "", ".alive", "a/b", "a\\b", "a\nb", "a\0b", "a\x1b[31m", "a\u202eb"],
)
def test_no_part_lies_elsewhere(checkpoints: Checkpoints, folder: Path, name: str) -> None:
    (folder.parent / "secret").write_bytes(CONTENT)
    lay(folder, manifest(part(), part(name)))
    step, reasons = newest(checkpoints)
    assert step == 1
    assert len(reasons) == 1
    assert reasons[0].isprintable()


@pytest.mark.parametrize("name", ["x" * 300, "\udcff", " model.pt", "model.pt\n"])
def test_names_of_parts_are_names(checkpoints: Checkpoints, folder: Path, name: str) -> None:
    lay(folder, manifest(part(), part(name)))
    assert newest(checkpoints)[0] == 1


@pytest.mark.parametrize(
    "data",
    {
        "twice": manifest(part(), part()),
        "negative": manifest(part(size=-1)),
        "too many bytes": manifest(part(size=1 << 51)),
        "a size of words": manifest(part(size="15")),
        "a size that is true": manifest(part(size=True)),
        "a size of a fraction": manifest(part(size=15.0)),
        "a step below 0": manifest(part(), step=-2),
        "another step": manifest(part(), step=3),
        "another fence": manifest(part(), fence=2),
        "time before time": manifest(part(), time="0001-01-01T00:00:00+23:59"),
        "time of no zone": manifest(part(), time="2026-11-21T12:00:00.000"),
        "time of a number": manifest(part(), time=20261121),
        "unknown key": manifest(part(), more=1),
        "unknown key of a part": manifest(part(more=1)),
        "newer": manifest(part(), version=2),
        "no parts": manifest(part(), parts={"a": 1}),
        "no part": manifest(None),
        "key twice": signed(manifest(part()).partition(b"\n")[0].replace(b'"step":2', b'"step":1,"step":2')),
        "blanks": signed(manifest(part()).partition(b"\n")[0] + b" "),
        "not a number": signed(manifest(part()).partition(b"\n")[0].replace(b'"step":2', b'"step":NaN')),
        "digits": signed(manifest(part()).partition(b"\n")[0].replace(b'"step":2', b'"step":' + b"2" * 5000)),
        "deep": signed(b"[" * 100_000),
        "deep objects": signed(b'{"parts":' * 50_000 + b"1" + b"}" * 50_000),
        "not UTF-8": signed(b'{"step":"\xff\xfe"}'),
        "a list": signed(b"[]"),
        "nothing": signed(b""),
        "null": signed(b"null"),
        "no sum": b"{}",
        "too long": signed(b" " * (5 << 20)),
    }.values(),
)
def test_a_manifest_that_is_none_of_ours_is_passed_over(checkpoints: Checkpoints, folder: Path, data: bytes) -> None:
    lay(folder, data)
    step, reasons = newest(checkpoints)
    assert step == 1
    assert len(reasons) == 1
    assert len(reasons[0]) < 500


def link(path: Path) -> None:
    target = path.rename(path.parent.parent / "target")
    path.symlink_to(target)


def other_kind(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def listen(path: Path) -> None:
    # By its number: the path may be longer than a socket's may be.
    where = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{where}/{path.name}")
    os.close(where)


KINDS = {
    "link": link,
    "pipe": other_kind(os.mkfifo),
    "socket": other_kind(listen),
    "endless device": other_kind(lambda path: path.symlink_to("/dev/zero")),
    "folder": other_kind(Path.mkdir),
    "everybody's": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("file", ["model.pt", "manifest.json"])
@pytest.mark.parametrize("change", KINDS.values(), ids=KINDS)
def test_what_is_no_file_of_its_own_is_not_opened(
    checkpoints: Checkpoints, folder: Path, file: str, change: Callable[[Path], None]
) -> None:
    change(lay(folder, manifest(part())) / file)
    step, reasons = newest(checkpoints)
    assert step == 1
    assert len(reasons) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_device_is_not_read(checkpoints: Checkpoints, folder: Path) -> None:
    here = lay(folder, manifest(part(size=TERA)), content=None)
    try:
        os.mknod(here / "model.pt", 0o020600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine's root may make no devices")
    assert newest(checkpoints)[0] == 1


def test_a_checkpoint_is_not_a_link(checkpoints: Checkpoints, folder: Path) -> None:
    here = lay(folder, manifest(part()))
    here.rename(folder.parent / "elsewhere")
    here.symlink_to(folder.parent / "elsewhere")
    assert newest(checkpoints)[0] == 1


@pytest.mark.parametrize(("declared", "real"), [(15, TERA), (TERA, 15), (TERA, TERA), (10, 15), (20, 15)])
def test_sizes_are_compared_before_anything_is_read(
    checkpoints: Checkpoints, folder: Path, declared: int, real: int
) -> None:
    here = lay(folder, manifest(part(size=declared)))
    os.truncate(here / "model.pt", real)
    step, (reason,) = newest(checkpoints)
    assert step == 1
    assert "bytes" in reason


def test_a_manifest_may_be_a_giant(checkpoints: Checkpoints, folder: Path) -> None:
    os.truncate(lay(folder, manifest(part())) / "manifest.json", TERA)
    assert newest(checkpoints)[0] == 1


def test_a_file_that_grows_while_it_is_read_comes_to_an_end(
    checkpoints: Checkpoints, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lay(folder, manifest(part()))
    fstat = os.fstat

    def growing(handle: int) -> os.stat_result:
        found = fstat(handle)
        if os.readlink(f"/proc/self/fd/{handle}") == str(here / "model.pt"):
            os.truncate(here / "model.pt", TERA)  # after it was looked at
        return found

    monkeypatch.setattr("elastic_runtime.checkpoint.file.os.fstat", growing)
    assert newest(checkpoints)[0] == 1


@pytest.mark.parametrize("name", ["ckpt-f1-s2-t" + "9" * 200 + "-aa", "ckpt-f\u0661-s2-t1-aa", "ckpt-f1-s2-t1-aa\n"])
def test_names_that_are_none_of_ours_are_left_alone(checkpoints: Checkpoints, folder: Path, name: str) -> None:
    (folder / name).mkdir()
    assert newest(checkpoints) == (1, [])


def test_so_many_that_cannot_be_read_are_no_reason_to_begin_anew(checkpoints: Checkpoints, folder: Path) -> None:
    for number in range(200):
        (folder / f"ckpt-f2-s2-t{number}-aa").mkdir()
    with pytest.raises(InvalidSettings, match=r"the newest 100 checkpoints in .* cannot be read\. Remove them"):
        newest(checkpoints)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_fence_that_is_no_file_is_said(
    checkpoints: Checkpoints, folder: Path, make: Callable[[Path], object]
) -> None:
    (folder / ".fence").unlink()
    make(folder / ".fence")
    with pytest.raises(StoreUnavailable, match="Not a regular file"):
        write(checkpoints, 2)


@pytest.mark.parametrize("text", ["9" * 5000, "\u0669", "-5", "1e9", "", "\udcff"])
def test_a_fence_that_is_no_number_shuts_nobody_out(checkpoints: Checkpoints, folder: Path, text: str) -> None:
    (folder / ".fence").write_bytes(text.encode(errors="surrogateescape"))
    write(checkpoints, 2)
    assert newest(checkpoints)[0] == 2


@pytest.mark.parametrize("owner", [b"\x1b[2J", b"a b", b"\xff", b"x" * 201])
def test_an_owner_that_cannot_be_one_is_nobody(checkpoints: Checkpoints, folder: Path, owner: bytes) -> None:
    (folder / ".fence").write_bytes(b"1 " + owner)
    checkpoints.owner = "run.1"
    write(checkpoints, 2)
    assert (folder / ".fence").read_bytes() == b"1 run.1"


def test_a_fence_that_is_one_does(checkpoints: Checkpoints, folder: Path) -> None:
    (folder / ".fence").write_text("5")
    with pytest.raises(OwnershipLost):
        write(checkpoints, 2)


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch, lambda path: path.symlink_to("/")])
def test_leftovers_that_are_no_folders_stop_no_writer(
    checkpoints: Checkpoints, folder: Path, make: Callable[[Path], object]
) -> None:
    make(folder / f".draft-{NAME}")
    (folder / f".draft-{NAME}2").mkdir()
    make(folder / f".draft-{NAME}2" / ".alive")
    write(checkpoints, 2)
    assert newest(checkpoints)[0] == 2
