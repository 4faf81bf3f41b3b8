"""The image's bill of materials names what Python and Debian have installed, and keeps to CycloneDX's schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster_kit.archive import Archive, write_tar
from cluster_kit.errors import ClusterError
from cluster_kit.image.cli import BILL_IN_IMAGE
from cluster_kit.image.inputs import ROOT

BILL = ROOT / "images" / "trainer" / "bill.py"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Maintainer: somebody
Description: a library

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
Maintainer: somebody
Description: no more
"""


def component(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"bom-ref": f"{name}=={version}", "name": name, "type": "library", "version": version, **more}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bill of an image with three Python packages and one of Debian."""
    pytest.importorskip("cyclonedx", reason="`make setup` installs it")
    folder = tmp_path_factory.mktemp("bill")
    local = {"type": "distribution", "url": "file:///build/wheels/horovod.whl"}
    components = [
        component("elastic-runtime", "4.5.6", licenses=[{"license": {"id": "Apache-2.0"}}]),
        component("horovod", "0.28.1", externalReferences=[local]),
        component("torch", "2.13.0+cpu", purl="pkg:pypi/torch@2.13.0%2Bcpu"),
    ]
    (folder / "python.json").write_text(
        json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components})
    )
    (folder / "dpkg").mkdir()
    (folder / "dpkg" / "status").write_text(STATUS)
    (folder / "os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    words = [folder / "python.json", folder / "dpkg", folder / "os-release", f"debian@sha256:{'a' * 64}"]
    return subprocess.run([sys.executable, BILL, *words], check=True, capture_output=True, text=True).stdout


def test_it_keeps_to_the_schema(made: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made) is None


def test_it_names_what_is_in_the_image_and_what_that_was_made_from(made: str) -> None:
    bill = json.loads(made)
    assert {each["purl"] for each in bill["components"] if "purl" in each} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/horovod@0.28.1",
        "pkg:pypi/torch@2.13.0%2Bcpu",
    }
    image = bill["metadata"]["component"]
    assert (image["type"], image["version"]) == ("container", "4.5.6")
    assert image["properties"] == [{"name": "base", "value": f"debian@sha256:{'a' * 64}"}]


def test_it_does_not_say_where_files_lay_in_the_build(made: str) -> None:
    assert "file:" not in made


def test_it_comes_out_of_the_newest_layer_that_has_one(tmp_path: Path) -> None:
    def layer(name: str, files: dict[str, bytes]) -> bytes:
        write_tar(tmp_path / name, files)
        return (tmp_path / name).read_bytes()

    layers = {
        "a.tar": layer("a.tar", {BILL_IN_IMAGE: b"old"}),
        "b.tar": layer("b.tar", {BILL_IN_IMAGE: b"new"}),
        "c.tar": layer("c.tar", {"opt/sources.py": b""}),
    }

    def image(names: list[str]) -> Archive:
        manifest = [{"Config": "config.json", "RepoTags": ["localhost/trainer:1"], "Layers": names}]
        write_tar(tmp_path / "image.tar", {**layers, "manifest.json": json.dumps(manifest).encode()})
        return Archive.read(tmp_path / "image.tar")

    assert image(["a.tar", "b.tar", "c.tar"]).in_image(BILL_IN_IMAGE) == b"new"
    with pytest.raises(ClusterError, match="there is no /usr/share/doc"):
        image(["c.tar"]).in_image(BILL_IN_IMAGE)
