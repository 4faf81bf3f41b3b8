"""Nothing is installed but what a lock pins by version and digest, and a lock says when it is stale."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
import locks
from locks import LOCKS, ROOT, Lock

REQUIREMENTS = ROOT / "requirements"
DOCKERFILE = ROOT / "images" / "trainer" / "Dockerfile"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Versions by the normalized names of packages."""
    return {re.sub("[._-]+", "-", each).lower(): v for each, v in PIN.findall((REQUIREMENTS / name).read_text())}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what locks are made from, and of them."""
    for project in ("provider", "images/trainer"):
        (tmp_path / project).mkdir(parents=True)
        shutil.copy(ROOT / project / "pyproject.toml", tmp_path / project)
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def stale(root: Path) -> set[str]:
    return {Path(lock.path).stem for lock in LOCKS if lock.stale(root)}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: Path(lock.path).stem)
def test_no_lock_is_stale(lock: Lock) -> None:
    assert not lock.stale(ROOT), f"{lock.path} is stale. Run: make requirements"


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_package_in_a_lock_has_a_digest(path: Path) -> None:
    requirements = re.split(r"^(?=[A-Za-z])", path.read_text(), flags=re.MULTILINE)[1:]
    assert requirements
    for requirement in requirements:
        assert PIN.match(requirement), requirement
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", requirement), requirement


TENSORFLOW = {"image-tensorflow", "trainer-tensorflow"}
FRAMEWORKS, SCRIPTS = "trainer-frameworks", "trainer-scripts"


@pytest.mark.parametrize(
    ("file", "old", "new", "which"),
    [
        ("requirements/bill.in", "cyclonedx-bom", "cyclonedx-bom>1", {"airflow", "image-build"}),
        ("requirements/uv.in", "uv", "uv\nruff", {"uv"}),
        (
            *("requirements/horovod.in", "setuptools<80", "setuptools<81"),
            {"horovod", "image", "trainer", "horovod-tensorflow", FRAMEWORKS, SCRIPTS, *TENSORFLOW},
        ),
        ("requirements/tensorflow.in", "==2.15.1", "==2.15.0", {"horovod-tensorflow", *TENSORFLOW}),
        ("provider/pyproject.toml", '"croniter>=2"', '"croniter>=3"', {"airflow"}),
        (
            "images/trainer/pyproject.toml",
            '"boto3>=1.36"',
            '"boto3>=1.37"',
            {"image", "trainer", FRAMEWORKS, SCRIPTS, *TENSORFLOW},
        ),
        (
            *("images/trainer/pyproject.toml", '"cattrs>=24.1"', '"cattrs>=25"'),
            {"airflow", "image", "trainer", FRAMEWORKS, SCRIPTS, *TENSORFLOW},
        ),
    ],
)
def test_a_changed_requirement_makes_the_locks_stale_that_were_made_from_it(
    repository: Path, file: str, old: str, new: str, which: set[str]
) -> None:
    edit(repository / file, old, new)

    assert stale(repository) == which


def test_a_version_raised_by_hand_in_one_lock_makes_those_stale_that_agree_with_it(repository: Path) -> None:
    edit(repository / "requirements" / "trainer.txt", "\nsympy==", "\nsympy==9")

    assert stale(repository) == {"horovod", "image", "torch", "torchft", FRAMEWORKS}


def test_a_comment_or_a_new_description_makes_none_stale(repository: Path) -> None:
    edit(repository / "requirements" / "trainer.in", "scikit-learn  # the", "scikit-learn  # another word for the")
    edit(repository / "images" / "trainer" / "pyproject.toml", "description = ", "description = 'new' # ")

    assert stale(repository) == set()


def test_the_check_names_the_stale_lock_and_the_remedy(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "ROOT", repository)
    monkeypatch.setattr(sys, "argv", ["locks.py", "--check"])
    assert locks.main() == 0
    edit(repository / "requirements" / "uv.in", "uv", "uv<1")

    assert locks.main() == 1

    told = capsys.readouterr().err
    assert "requirements/uv.txt is stale" in told
    assert "Run: make requirements" in told


def _commands(text: str) -> Iterator[str]:
    """Of a Dockerfile: each command, the continued lines joined, without comments."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return (part for line in text.splitlines() for part in re.split(r"&&|;|\bthen\b", line))


def test_whatever_pip_installs_into_the_image_is_checked_or_was_built_there() -> None:
    installing = [each for each in _commands(DOCKERFILE.read_text()) if re.search(r"pip install .*-|\$install ", each)]
    allowed = ("--require-hashes", "--no-index")
    loose = [each.strip() for each in installing if not any(word in each for word in allowed)]
    assert len(installing) >= 6
    # How pip is called, and what somebody has asked for by name.
    assert [each[:9] for each in loose] == ["RUN --mou", "$install "]
    assert loose[1] == '$install "$TORCH"'


def test_set_up_installs_only_what_is_checked(tmp_path: Path) -> None:
    for command in (environments.pip(tmp_path), environments.locked_packages(tmp_path, tmp_path / "lock.txt")):
        assert "--require-hashes" in command


def test_the_image_has_all_that_its_runtime_needs() -> None:
    project = tomllib.loads((ROOT / "images" / "trainer" / "pyproject.toml").read_text())["project"]
    extras = ("certificates", "torch", "horovod", "kubernetes", "s3")
    needs = project["dependencies"] + [need for extra in extras for need in project["optional-dependencies"][extra]]
    names = {re.split(r"[^\w-]", need, maxsplit=1)[0].replace("_", "-") for need in needs}
    assert names - {"elastic-runtime", "horovod", "torch"} <= set(pins("image.txt"))


def test_the_image_with_tensorflow_has_all_that_is_in_the_one_with_torch() -> None:
    assert set(pins("image.txt")) <= set(pins("image-tensorflow.txt"))
    assert pins("image-tensorflow.txt")["tensorflow-cpu"] == pins("trainer-tensorflow.txt")["tensorflow-cpu"]


def test_torch_and_horovod_are_the_same_wherever_they_are_named() -> None:
    torch = environments.TORCH
    assert pins("torch.txt")["torch"] == torch
    assert pins("torch-cpu.txt") == {"torch": f"{torch}+cpu"}
    assert f"ARG TORCH=torch=={torch}+cpu\n" in DOCKERFILE.read_text()
    # As the Dockerfile looks for the lock of the wanted torch.
    for name, version in (("torch.txt", torch), ("torch-cpu.txt", f"{torch}+cpu")):
        assert f"torch=={version} \\" in (REQUIREMENTS / name).read_text().splitlines()
    assert f"version={environments.HOROVOD}\n" in environments.BUILD_HOROVOD.read_text()


@pytest.mark.parametrize("changed", ["BUILD_HOROVOD", "HOROVOD_PATCH"])
def test_a_wheel_that_was_built_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    before = environments.horovod_recipe()
    assert environments.horovod_recipe() == before
    (tmp_path / "changed").write_bytes(getattr(environments, changed).read_bytes() + b"\n")
    monkeypatch.setattr(environments, changed, tmp_path / "changed")
    assert environments.horovod_recipe() != before


def test_another_source_of_horovod_is_not_built(tmp_path: Path) -> None:
    script = tmp_path / "build-horovod.sh"
    shutil.copytree(environments.HOROVOD_PATCH.parent, tmp_path / "patches")
    script.write_text(re.sub(r"^sum=.*", f"sum={'0' * 64}", environments.BUILD_HOROVOD.read_text(), flags=re.MULTILINE))
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("g++", "cmake"):
        (tools / tool).symlink_to("/bin/false")
    # A pip that has found a file and compares digests, as pip does, without asking an index.
    source = tmp_path / "index" / "horovod-0.28.1.tar.gz"
    source.parent.mkdir()
    source.write_bytes(b"print('a stranger')")
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nno-index = true\nfind-links = {source.parent}\n")

    done = subprocess.run(
        ["bash", script, sys.executable, tmp_path / "wheels"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "PIP_CONFIG_FILE": str(settings)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "wheels").exists()
