"""How far the compilation of Kubernetes is, by the log of ``make`` with ``GOFLAGS=-v``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_kit.debian.binaries import Compiled

A, B = "k8s.io/kubernetes/pkg/a", "k8s.io/kubernetes/vendor/k8s.io/b"
GENERATORS = f"""\
+++ [1122 11:06:46] Building go targets for linux/amd64:
    ./vendor/k8s.io/code-generator/cmd/conversion-gen
{B}
k8s.io/kubernetes/vendor/k8s.io/code-generator/cmd/conversion-gen
"""
PROGRAMS = """\
+++ [1122 11:08:02] Building go targets for linux/amd64:
    cmd/kube-proxy
    cmd/kubelet
"""


@pytest.mark.parametrize(
    ("text", "far"),
    [
        ("", ""),
        (GENERATORS, "k8s.io/kubernetes/vendor/k8s.io/code-generator/cmd/conversion-gen"),
        (GENERATORS + PROGRAMS, "0 of about 1,004 packages"),
        (GENERATORS + PROGRAMS + f"{A}\n# a warning\n{B}\n", "2 of about 1,004 packages"),
        (GENERATORS + PROGRAMS + f"{A}\n{B}\n{A}\n", "3 of about 1,004 packages"),
    ],
)
def test_packages_are_counted_once_the_programs_are_compiled(tmp_path: Path, text: str, far: str) -> None:
    log = tmp_path / "compile.log"
    log.write_text(text)
    assert Compiled(frozenset({A, B}), 1004)(log) == far
