"""A checkpoint cannot make code run in a rank of somebody's own image: a torch that would let it is refused."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from elastic_runtime.agent.zygote import preload
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.version import check_torch


def install(folder: Path, version: str) -> None:
    metadata = folder / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["1.13.1", "2.2.0", "2.5.1+cu124", "2.9.1", "unknown"])
def test_one_that_a_checkpoint_can_make_run_code_is_refused_with_a_remedy(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, version)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(InvalidSettings) as caught:
        check_torch()

    assert version in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "CVE-2026-24747" in str(caught.value)
    assert "Install torch 2.10 or newer" in caught.value.remedy


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "3.0.0"])
def test_a_newer_one_is_not(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, version)
    monkeypatch.syspath_prepend(tmp_path)
    check_torch()


def test_nor_is_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    check_torch()


def test_the_helpers_are_not_imported_with_it_and_the_warm_process_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "2.9.1")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.startswith("elastic_runtime.torch")]:
        if name != "elastic_runtime.torch.version":
            monkeypatch.delitem(sys.modules, name)

    with pytest.raises(InvalidSettings, match=r"torch 2\.9\.1"):
        importlib.import_module("elastic_runtime.torch.durable")
    assert "torch 2.9.1" in preload(["elastic_runtime.torch.durable"])
