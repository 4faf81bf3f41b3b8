"""The trainer's image is built anew when its inputs change, and its build gets what it needs and no more."""

from __future__ import annotations

import configparser
import re
import shutil
from pathlib import Path

import pytest

from cluster_kit.debian.binaries import as_source
from cluster_kit.image import inputs
from cluster_kit.image.inputs import DOCKERFILE, WHEELS, Inputs
from cluster_kit.image.pip_settings import CERTIFICATES, PipSettings

NOTHING = PipSettings({})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the image is made from."""
    root = tmp_path / "repository"
    shutil.copytree(inputs.ROOT / "images", root / "images", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(inputs.ROOT / "requirements", root / "requirements")
    monkeypatch.setattr(inputs, "ROOT", root)
    return root


def test_every_file_that_the_dockerfile_copies_is_in_the_context(repository: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()

    Inputs.collect({}, None, NOTHING).lay_out(context)

    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", (context / DOCKERFILE).read_text(), re.MULTILINE)
    assert len(copies) >= 5
    for source in " ".join(copies).split():
        assert (context / source).exists(), source
    assert list((context / WHEELS).iterdir()) == []


def test_a_changed_source_or_setting_is_another_image_and_a_compiled_module_is_not(repository: Path) -> None:
    def digest(**arguments: str) -> str:
        return Inputs.collect(arguments, None, NOTHING).digest()

    before = digest()
    (repository / "images/trainer/src/elastic_runtime/__pycache__").mkdir()
    (repository / "images/trainer/src/elastic_runtime/__pycache__/spec.cpython-311.pyc").touch()
    assert digest() == before
    assert digest(HOROVOD_GPU_OPERATIONS="NCCL") != before
    with (repository / "images/trainer/src/elastic_runtime/run/spec.py").open("a") as stream:
        stream.write("\n")
    assert digest() != before


def test_new_sources_need_no_new_environment_and_a_new_requirement_does(repository: Path) -> None:
    def digest() -> str:
        return Inputs.collect({}, None, NOTHING).environment_digest()

    before = digest()
    with (repository / "images/trainer/src/elastic_runtime/run/spec.py").open("a") as stream:
        stream.write("\n")
    assert digest() == before
    for file in ("requirements/image.txt", "requirements/torch-cpu.txt", str(inputs.TRAINER / "build-horovod.sh")):
        with (repository / file).open("a") as stream:
            stream.write("\n")
        assert digest() != before, file
        before = digest()


def test_a_cpu_build_of_torch_that_pip_knows_of_is_used_unless_another_is_wanted(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = re.findall(r"^ARG TORCH=torch==(.+)$", (repository / DOCKERFILE).read_text(), re.MULTILINE)[0]
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    wheel = tmp_path / "wheels" / f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.parent.mkdir()
    wheel.touch()
    pip = PipSettings({"find-links": f"https://wheels.example {wheel.parent}"})

    here = Inputs.collect({}, None, pip)

    assert here.wheels == (wheel,)
    assert here.arguments == {"TORCH_INDEX": ""}
    assert Inputs.collect({"TORCH": "torch==2.9.0"}, None, pip).wheels == ()
    assert Inputs.collect({}, None, NOTHING).arguments == {}


def test_the_name_asks_no_registry_and_carries_the_version(repository: Path) -> None:
    (repository / "images/trainer/src/elastic_runtime/__init__.py").write_text('__version__ = "4.5.6"\n')

    assert Inputs.collect({}, None, NOTHING).tag == "localhost/elastic-training/trainer:4.5.6"
    assert Inputs.collect({}, "mine:1", NOTHING).tag == "mine:1"
    assert Inputs.collect({"FAMILY": "torch"}, None, NOTHING).tag == "localhost/elastic-training/trainer:4.5.6"
    assert Inputs.collect({"FAMILY": "both"}, None, NOTHING).tag == "localhost/elastic-training/trainer:4.5.6-both"


def test_pips_settings_reach_the_build_without_folders_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = tmp_path / "authorities.crt"
    certificates.write_text("an authority")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///somewhere https://index.example/simple")
    monkeypatch.setenv("PIP_CERT", str(certificates))
    monkeypatch.setenv("PIP_FIND_LINKS", "/somewhere/else")

    secrets = PipSettings.read().write(tmp_path)

    settings = configparser.RawConfigParser()
    settings.read(secrets["pip.conf"])
    assert settings["global"]["extra-index-url"] == "https://index.example/simple"
    assert settings["global"]["cert"] == CERTIFICATES
    assert "find-links" not in settings["global"]
    assert secrets["certificates"].read_text() == "an authority"


def test_apts_sources_are_asked_for_source_packages() -> None:
    one_line = "# Debian\ndeb http://deb.example/debian bookworm main\ndeb-src http://deb.example/debian x main\n"
    newer = "Types: deb\nURIs: http://deb.example/debian\nSuites: bookworm\n"

    assert as_source(one_line) == one_line.replace("\ndeb http", "\ndeb-src http")
    assert as_source(newer) == newer.replace("Types: deb", "Types: deb-src")
