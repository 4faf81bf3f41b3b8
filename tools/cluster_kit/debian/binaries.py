"""Programs that the lab is made of: Debian's packages, and Kubernetes compiled from Debian's source package."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.debian.places import VERSION, Places
from cluster_kit.errors import ClusterError
from cluster_kit.shell import Progress, newest_line, run

_DYNAMIC = "kubelet"
"""The others are linked statically, so that ``make`` compiles what they share with it twice."""
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
_RUN_PACKAGES = {
    "containerd": "containerd",
    "etcd": "etcd-server",
    "gcc": "gcc",
    "ip": "iproute2",
    "iptables": "iptables",
    "kubectl": "kubernetes-client",
    "openssl": "openssl",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/include/stdio.h": "libc6-dev",
}
"""A program or file, and the package that it comes with."""
_REFLECT2 = Path("github.com", "modern-go", "reflect2")
_DEBIAN_REFLECT2 = Path("/usr/share/gocode/src") / _REFLECT2
_BUILD_PACKAGES = {
    "dpkg-source": "dpkg-dev",
    "go": "golang-go",
    "jq": "jq",
    "make": "make",
    "rsync": "rsync",
    f"{_DEBIAN_REFLECT2 / 'reflect2.go'}": "golang-github-modern-go-reflect2-dev",
}
_APT_SOURCES = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("debian*")))


@dataclass(frozen=True, slots=True)
class Binaries:
    """Makes sure that they are there."""

    places: Places
    progress: Progress

    def provide(self) -> None:
        """Install and compile what is missing; nothing, quickly, when all is there."""
        self._install(_RUN_PACKAGES)
        if all((self.places.binaries / name).exists() for name in KUBERNETES):
            return
        self._install(_BUILD_PACKAGES)
        self._compile()

    def _install(self, packages: dict[str, str]) -> None:
        missing = [package for program, package in packages.items() if not shutil.which(program, os.R_OK)]
        if not missing:
            return
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        log = self.places.state / "log" / "apt.log"
        self.progress.step("apt-get update", ["apt-get", "update", "-q"], log, environment=environment)
        install = ["apt-get", "install", "-yq", "--no-install-recommends", *missing]
        self.progress.step(f"apt-get install {' '.join(missing)}", install, log, environment=environment)

    def _compile(self) -> None:
        title = f"compiling Kubernetes {VERSION}, once: about six minutes on two cores"
        log = self.places.state / "log" / "compile.log"
        with tempfile.TemporaryDirectory(prefix="kubernetes-") as name:
            folder = Path(name)
            source = self._source(folder)
            _renew_reflect2(source)
            self.progress.step(title, _make_command(), log, folder=source, how_far=_counted(folder, source))
            unfinished = self.places.binaries.with_name(f"{self.places.binaries.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            for program in KUBERNETES:
                shutil.copy2(source / "_output" / "local" / "go" / "bin" / program, unfinished)
            shutil.rmtree(self.places.binaries, ignore_errors=True)
            unfinished.rename(self.places.binaries)

    def _source(self, folder: Path) -> Path:
        """Fetch and unpack the source package, without a change to this machine's own apt sources."""
        lists, sources = folder / "lists", folder / "sources"
        lists.mkdir()
        sources.mkdir()
        for path in _APT_SOURCES:
            if path.is_file():
                (sources / path.name).write_text(as_source(path.read_text()))
        options = [
            f"-oDir::State::Lists={lists}",
            f"-oDir::Etc::SourceParts={sources}",
            "-oDir::Etc::SourceList=/dev/null",
        ]
        log = self.places.state / "log" / "source.log"
        self.progress.step("index of Debian's source packages", ["apt-get", *options, "update", "-q"], log)
        fetch = ["apt-get", *options, "source", "-q", "--download-only", "kubernetes"]
        self.progress.step(f"source of Kubernetes {VERSION}", fetch, log, folder=folder)
        description = next(folder.glob(f"kubernetes_*{VERSION}-*.dsc"), None)
        if description is None:
            raise ClusterError(f"Debian's archive has no source of kubernetes {VERSION}; see {log}")
        run("dpkg-source", "--extract", description, folder / "kubernetes", seconds=300.0)
        return folder / "kubernetes"


def _renew_reflect2(source: Path) -> None:
    """Take Debian's reflect2 1.0.2 for the 1.0.1 that Kubernetes brings along.

    Compiled with Go 1.18 or newer, 1.0.1 writes past the end of a map iterator, and the API server crashes now and then
    with "fatal error: fault" (https://github.com/modern-go/reflect2/issues/24).
    """
    vendored = source / "vendor" / _REFLECT2
    for old in vendored.glob("*.go"):
        old.unlink()
    for new in _DEBIAN_REFLECT2.glob("*.go"):
        if not new.name.endswith("_test.go"):
            shutil.copy(new, vendored)


@dataclass(frozen=True, slots=True)
class Compiled:
    """How far a compilation is by the log of ``go install -v``, which names each package that it compiles."""

    packages: frozenset[str]
    total: int
    """About so many compilations: a package that no cgo can reach is compiled once only."""

    def __call__(self, log: Path) -> str:
        """``312 of about 3,600 packages``; before that, the newest line: make builds its own generators first."""
        _, found, after = log.read_text(errors="replace").rpartition(f"    cmd/{KUBERNETES[-1]}\n")
        done = sum(line in self.packages for line in after.splitlines())
        return f"{done:,} of about {self.total:,} packages" if found else newest_line(log)


def _counted(folder: Path, source: Path) -> Compiled:
    """Have Go list what is going to be compiled."""
    root = folder / "gopath" / "src" / "k8s.io"
    root.mkdir(parents=True)
    (root / "kubernetes").symlink_to(source)
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "",
        "GOPATH": str(folder / "gopath"),
    }
    # -e: some sources are generated only later.
    listing = ("go", "list", "-e", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}")

    def packages(*programs: str) -> set[str]:
        paths = (f"k8s.io/kubernetes/cmd/{program}" for program in programs)
        return set(run(*listing, *paths, environment=environment, folder=root / "kubernetes").split())

    static, dynamic = packages(*(name for name in KUBERNETES if name != _DYNAMIC)), packages(_DYNAMIC)
    return Compiled(frozenset(static | dynamic), len(static) + len(dynamic))


def _make_command() -> Sequence[str]:
    # Without Git there is nothing that its build scripts could ask for a version.
    return [
        "make",
        f"WHAT={' '.join(f'cmd/{name}' for name in KUBERNETES)}",
        "GOFLAGS=-v",
        "KUBE_GIT_TREE_STATE=archive",
        f"KUBE_GIT_VERSION=v{VERSION}",
        "KUBE_GIT_COMMIT=debian",
        "GO111MODULE=off",
    ]


def as_source(text: str) -> str:
    """The same places, for source packages: apt's one-line format and its newer one."""
    text = re.sub(r"^deb(?=\s)", "deb-src", text, flags=re.MULTILINE)
    return re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
