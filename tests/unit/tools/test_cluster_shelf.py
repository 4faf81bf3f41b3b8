"""What is laid on the lab's shelf is what the archive holds, and each layer lies there once."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster_kit.archive import Archive, write_tar
from cluster_kit.debian.shelf import Shelf, full_name
from cluster_kit.errors import ClusterError


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_archive(path: Path, name: str, layers: list[bytes], *, compress: bool = False) -> Archive:
    """As ``docker save`` would write it; the layers' content does not matter here."""
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{sha256(each)}" for each in layers]}}).encode()
    stored = [gzip.compress(each, mtime=0) if compress else each for each in layers]
    files = {f"{sha256(each)}.tar": each for each in stored} | {f"{sha256(config)}.json": config}
    manifest = [
        {"Config": f"{sha256(config)}.json", "RepoTags": [name], "Layers": [f"{sha256(x)}.tar" for x in stored]}
    ]
    write_tar(path, files | {"manifest.json": json.dumps(manifest).encode()})
    return Archive.read(path)


def oci_files(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as tar:
        files = {name: tar.extractfile(name) for name in tar.getnames()}
        return {name: json.loads(stream.read()) for name, stream in files.items() if stream is not None}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


@pytest.mark.parametrize("compress", [False, True])
def test_the_manifests_name_the_layers_that_lie_there(shelf: Shelf, tmp_path: Path, compress: bool) -> None:
    archive = make_archive(tmp_path / "a.tar", "localhost/trainer:1", [b"base", b"top"], compress=compress)

    shelved = shelf.put(archive)

    files = oci_files(shelf.manifests(shelved))
    (entry,) = files["index.json"]["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/trainer:1"}
    manifest = files[f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}"]
    contents = []
    for layer in manifest["layers"]:
        data = shelf.layer(layer["digest"].removeprefix("sha256:")).read_bytes()
        assert layer["digest"] == f"sha256:{sha256(data)}"
        assert layer["size"] == len(data)
        assert layer["mediaType"].endswith("+gzip") is compress
        contents.append(gzip.decompress(data) if compress else data)
    assert contents == [b"base", b"top"]


def test_a_new_version_takes_the_place_of_the_old_one_and_shares_its_base(shelf: Shelf, tmp_path: Path) -> None:
    old = shelf.put(make_archive(tmp_path / "a.tar", "localhost/trainer:1", [b"base", b"old"]))
    base = shelf.layer(sha256(b"base")).stat()

    new = shelf.put(make_archive(tmp_path / "b.tar", "localhost/trainer:1", [b"base", b"new"]))

    assert shelf.all() == [new]
    assert shelf.layer(sha256(b"base")).stat() == base
    assert shelf.layer(sha256(b"new")).read_bytes() == b"new"
    assert not shelf.layer(sha256(b"old")).exists()
    assert not shelf.manifests(old).exists()


def test_another_image_stays(shelf: Shelf, tmp_path: Path) -> None:
    pause = shelf.put(make_archive(tmp_path / "a.tar", "localhost/pause:1", [b"pause"]))
    trainer = shelf.put(make_archive(tmp_path / "b.tar", "localhost/trainer:1", [b"trainer"]))

    assert {each.digest for each in shelf.all()} == {pause.digest, trainer.digest}


def test_a_file_that_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar")

    for name in ("x.tar", "missing.tar"):
        with pytest.raises(ClusterError, match=f"{name} is not a docker-archive"):
            Archive.read(tmp_path / name)


@pytest.mark.parametrize("name", ["localhost/trainer:1", "registry.example:5000/trainer:1"])
def test_a_whole_name_is_what_a_kubelet_asks_for(name: str) -> None:
    assert full_name(name) == name


@pytest.mark.parametrize("name", ["team/trainer:1", "debian:bookworm"])
def test_a_name_that_leaves_its_registry_to_be_guessed_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match=f"localhost/{name}"):
        full_name(name)
